//! Generated rows with a label, which every rank generates for itself.

use std::ops::Range;

use fastrand::Rng;

/// Rows of features, and a label of 0 or 1 for each row.
pub(crate) struct Rows {
    pub(crate) features: Vec<f32>,
    pub(crate) labels: Vec<f32>,
}

/// Generates rows of this many features. A row depends only on its number.
pub(crate) fn generate(rows: Range<usize>, features: usize) -> Rows {
    let mut generated = Rows { features: Vec::with_capacity(rows.len() * features), labels: Vec::new() };
    for row in rows {
        let mut random = Rng::with_seed(row as u64);
        let start = generated.features.len();
        generated.features.extend((0..features).map(|_| 2.0 * random.f32() - 1.0));
        let noise = 0.5 * (random.f32() - 0.5);
        let is_positive = score(&generated.features[start..]) + noise > 0.0;
        generated.labels.push(f32::from(u8::from(is_positive)));
    }
    generated
}

/// A function of the features that no single one of them determines.
fn score(row: &[f32]) -> f32 {
    let pairs = row.chunks_exact(2).zip(1..).map(|(pair, weight)| pair[0] * pair[1] / weight as f32);
    pairs.sum::<f32>() + 0.5 * row[0].sin()
}

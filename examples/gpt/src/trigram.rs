//! The baseline: an interpolated trigram model of bytes (Jelinek and Mercer, Interpolated
//! estimation of Markov source parameters from sparse data, 1980).

use std::ops::Range;

/// The orders that are mixed: every byte alike, then the frequencies after no, one and two bytes.
const ORDERS: usize = 4;

/// Steps of expectation maximization. The weights change by less than 1e-4 in the last ones.
const STEPS: usize = 30;

/// A model that predicts a byte from the two before it.
#[derive(Debug, Clone)]
pub struct Trigram {
    counts: Counts,
    weights: [f64; ORDERS],
}

impl Trigram {
    /// Fits the model to a part of a text: the weights to its last tenth, with the frequencies of
    /// the rest, and then the frequencies to all of it.
    #[must_use]
    pub fn fit(text: &[u8], part: Range<usize>) -> Self {
        let part = &text[part];
        let (counted, held_out) = part.split_at(part.len() / 10 * 9);
        let weights = fit_weights(&Counts::of(counted), held_out);
        Self { counts: Counts::of(part), weights }
    }

    /// Returns the mean number of bits for the bytes at these positions of a text. The first two
    /// bytes of the text are skipped.
    #[must_use]
    pub fn bits_per_byte(&self, text: &[u8], positions: Range<usize>) -> f64 {
        let bytes = text[positions.start.saturating_sub(2)..positions.end].windows(3);
        let count = bytes.len();
        let bits = bytes.map(|bytes| -dot(&self.weights, &self.counts.probabilities(bytes)).log2());
        bits.sum::<f64>() / count as f64
    }

    /// Returns the weights of the four orders, from the lowest to the highest. Their sum is 1.
    #[must_use]
    pub fn weights(&self) -> [f64; ORDERS] {
        self.weights
    }
}

/// The numbers of occurrences of one, two and three bytes in a row.
///
/// The text counts as a ring, so that every byte has a successor: then the probabilities of all
/// bytes after any two add up to 1.
#[derive(Debug, Clone)]
struct Counts {
    total: u32,
    single: Vec<u32>,
    pairs: Vec<u32>,
    triples: Vec<u32>,
}

impl Counts {
    fn of(text: &[u8]) -> Self {
        let ring: Vec<u8> = text.iter().chain(text.iter().cycle().take(2)).copied().collect();
        let [mut single, mut pairs, mut triples] = [8, 16, 24].map(|bits| vec![0_u32; 1 << bits]);
        for bytes in ring.windows(3) {
            single[index(&bytes[..1])] += 1;
            pairs[index(&bytes[..2])] += 1;
            triples[index(bytes)] += 1;
        }
        Self { total: single.iter().sum(), single, pairs, triples }
    }

    /// Returns the probabilities of the last of three bytes by each order. An order that has not
    /// seen the bytes before it predicts as the next lower one.
    fn probabilities(&self, bytes: &[u8]) -> [f64; ORDERS] {
        let uniform = 1.0 / self.single.len() as f64;
        let share = |part: u32, whole: u32, lower: f64| {
            if whole == 0 { lower } else { f64::from(part) / f64::from(whole) }
        };
        let unigram = share(self.single[index(&bytes[2..])], self.total, uniform);
        let bigram = share(self.pairs[index(&bytes[1..])], self.single[index(&bytes[1..2])], unigram);
        let trigram = share(self.triples[index(bytes)], self.pairs[index(&bytes[..2])], bigram);
        [uniform, unigram, bigram, trigram]
    }
}

fn index(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |index, byte| index << 8 | usize::from(*byte))
}

/// Returns the weights that make a text most likely, by expectation maximization.
fn fit_weights(counts: &Counts, text: &[u8]) -> [f64; ORDERS] {
    let probabilities: Vec<[f64; ORDERS]> =
        text.windows(3).map(|bytes| counts.probabilities(bytes)).collect();
    let mut weights = [1.0 / ORDERS as f64; ORDERS];
    if probabilities.is_empty() {
        return weights;
    }
    for _ in 0..STEPS {
        let mut sums = [0.0; ORDERS];
        for each in &probabilities {
            let total = dot(&weights, each);
            for order in 0..ORDERS {
                sums[order] += weights[order] * each[order] / total;
            }
        }
        weights = sums.map(|sum| sum / probabilities.len() as f64);
    }
    weights
}

fn dot(weights: &[f64; ORDERS], probabilities: &[f64; ORDERS]) -> f64 {
    weights.iter().zip(probabilities).map(|(weight, probability)| weight * probability).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probabilities_of_all_bytes_add_up_to_one() {
        let text = b"a text of a few words, in which some words are the same";
        let model = Trigram::fit(text, 0..text.len());
        assert!((model.weights().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // Seen, seen in part, at the end of the text and after it, and not seen.
        for context in [*b"wo", *b"xa", *b"me", *b"ea", [200, 201]] {
            let of = |byte| dot(&model.weights, &model.counts.probabilities(&[context[0], context[1], byte]));
            let sum: f64 = (0..=255).map(of).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{context:?}: {sum}");
        }
    }

    /// Random bytes have 2 bits each, if there are four of them.
    #[test]
    fn bytes_without_structure_have_their_entropy() {
        let mut random = fastrand::Rng::with_seed(5);
        let text: Vec<u8> = (0..200_000).map(|_| random.u8(0..4)).collect();
        let bits = Trigram::fit(&text, 0..180_000).bits_per_byte(&text, 180_000..200_000);
        assert!((bits - 2.0).abs() < 0.01, "{bits}");
    }

    #[test]
    fn a_byte_that_depends_on_the_two_before_it_is_predicted() {
        let mut text = vec![1_u8, 1];
        for at in 2..20_000 {
            let [before, last] = [text[at - 2], text[at - 1]].map(u32::from);
            text.push(((5 * last + 3 * before + 1) % 64) as u8);
        }
        let model = Trigram::fit(&text, 0..18_000);
        assert!(model.bits_per_byte(&text, 18_000..20_000) < 0.05, "{model:?}");
        assert!(model.weights()[3] > 0.95);
    }

    #[test]
    fn a_byte_that_was_never_seen_is_possible() {
        let mut text = vec![b'a'; 1000];
        text.push(b'b');
        let bits = Trigram::fit(&text, 0..1000).bits_per_byte(&text, 1000..1001);
        assert!(bits > 8.0 && bits.is_finite(), "{bits}");
    }
}

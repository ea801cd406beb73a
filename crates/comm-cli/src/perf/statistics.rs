//! Percentiles of samples.

use comm_cli::__private::statistics::quantile;
use serde::Serialize;

/// Percentiles of the time of a call, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p10: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    /// Of samples in seconds, in any order.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut micros: Vec<f64> = samples.iter().map(|seconds| seconds * 1e6).collect();
        micros.sort_unstable_by(f64::total_cmp);
        let [p10, p50, p90, p99] = [0.1, 0.5, 0.9, 0.99].map(|share| quantile(&micros, share));
        Self { p10, p50, p90, p99 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_the_samples() {
        let samples: Vec<f64> = (0..=10).rev().map(|n| f64::from(n) * 1e-6).collect();
        let found = Percentiles::of(&samples);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(found.p10, 1.0);
        close(found.p50, 5.0);
        close(found.p90, 9.0);
        close(found.p99, 9.9);
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let found = Percentiles::of(&[2e-6]);
        assert_eq!((found.p10, found.p50, found.p99), (2.0, 2.0, 2.0));
    }
}

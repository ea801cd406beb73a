//! The results of one benchmark.

use comm::{DType, ReduceOp};
use comm_cli::__private::statistics::quantile;
use serde::Serialize;

/// The properties that all rows of a table share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BenchmarkInfo {
    pub(crate) name: &'static str,
    pub(crate) ranks: usize,
    /// `None` if there is no data, or only bytes.
    pub(crate) dtype: Option<DType>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) root: Option<usize>,
    /// A suffix of the name in titles.
    pub(crate) layout: &'static str,
    /// Whether the communicator allocates the buffers.
    pub(crate) alloc: bool,
    /// The ratio of bus bandwidth to algorithm bandwidth.
    pub(crate) bus_factor: f64,
}

impl BenchmarkInfo {
    pub(crate) fn count(&self, bytes: usize) -> usize {
        bytes / self.dtype.map_or(1, DType::size)
    }
}

/// The result at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    /// `None` for messages between two ranks.
    pub(crate) algorithm: Option<&'static str>,
    /// The time of a call in microseconds.
    pub(crate) time: Percentiles,
    /// The number of wrong elements on all ranks, if results were checked.
    pub(crate) wrong: Option<u64>,
}

impl Row {
    /// Returns the algorithm bandwidth in 10^9 bytes per second.
    pub(crate) fn algbw(&self) -> f64 {
        if self.time.p50 > 0.0 { self.bytes as f64 / self.time.p50 * 1e-3 } else { 0.0 }
    }

    /// Returns the bus bandwidth in 10^9 bytes per second.
    pub(crate) fn busbw(&self, info: &BenchmarkInfo) -> f64 {
        self.algbw() * info.bus_factor
    }
}

/// Percentiles of times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p10: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    /// Interpolates the percentiles of samples in seconds.
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
    fn percentiles_interpolate_between_samples() {
        let samples: Vec<f64> = (0..=10).rev().map(|n| f64::from(n) * 1e-6).collect();
        let found = Percentiles::of(&samples);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(found.p10, 1.0);
        close(found.p50, 5.0);
        close(found.p90, 9.0);
        close(found.p99, 9.9);
        let found = Percentiles::of(&[2e-6]);
        assert_eq!((found.p10, found.p50, found.p99), (2.0, 2.0, 2.0));
    }
}

//! What was measured at one size.

use super::label::Label;
use super::statistics::Percentiles;

/// One line of the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    /// Nothing of messages between two ranks.
    pub(crate) algorithm: Option<&'static str>,
    /// Of a call, in microseconds.
    pub(crate) time: Percentiles,
    /// Wrong elements on all ranks, if they were looked at.
    pub(crate) wrong: Option<u64>,
}

impl Row {
    /// What the caller sees, in 10^9 bytes per second.
    pub(crate) fn algbw(&self) -> f64 {
        if self.time.p50 > 0.0 { self.bytes as f64 / self.time.p50 * 1e-3 } else { 0.0 }
    }

    /// What the busiest port carries, in 10^9 bytes per second.
    pub(crate) fn busbw(&self, label: &Label) -> f64 {
        self.algbw() * label.bus_factor
    }
}

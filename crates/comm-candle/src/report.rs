//! The report of a step.

use comm_ddp::Timeline;

/// The gradients that were missing in a step, the norm of their averages, and its times. Names are
/// sorted.
///
/// Both lists are usually empty. If no rank has a gradient for a variable, either the loss does not
/// depend on it, as for the running means of a batch norm, or it is before an operation without
/// backward, which candle does not report. Check the report after the first step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    pub(crate) without_gradient: Vec<String>,
    pub(crate) counted_as_zero: Vec<String>,
    pub(crate) norm: Option<f64>,
    pub(crate) timeline: Option<Timeline>,
}

impl Report {
    /// Returns the variables for which no rank had a gradient, and which have none now. The list is
    /// the same on every rank. It omits variables of integers, which never have one.
    #[must_use]
    pub fn without_gradient(&self) -> &[String] {
        &self.without_gradient
    }

    /// Returns the variables for which other ranks had a gradient but this one had none. It counted
    /// as zero, and this rank now has the average.
    #[must_use]
    pub fn counted_as_zero(&self) -> &[String] {
        &self.counted_as_zero
    }

    /// Returns the L2 norm of all averages together before they were clipped, the same on every
    /// rank, if [`Options::max_norm`](crate::Options::max_norm) is set.
    #[must_use]
    pub const fn norm(&self) -> Option<f64> {
        self.norm
    }

    /// Returns the times of the step's events; `None` for gradients on GPUs.
    #[must_use]
    pub const fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }
}

//! The report of a step.

use comm_ddp::Timeline;

/// The gradients that were missing in a step, the norm of their averages, and its times. Names are
/// sorted.
///
/// Both lists are usually empty. A variable without gradient on any rank is one on which the loss
/// does not depend, or one before an operation without backward, which candle does not report;
/// running means of a batch norm are among the former. Check it after the first step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    pub(crate) nowhere: Vec<String>,
    pub(crate) elsewhere: Vec<String>,
    pub(crate) norm: Option<f64>,
    pub(crate) timeline: Option<Timeline>,
}

impl Report {
    /// Returns the variables for which no rank had a gradient, and which have none now. The same on
    /// every rank. Variables of integers, which never have one, are left out.
    #[must_use]
    pub fn without_gradient(&self) -> &[String] {
        &self.nowhere
    }

    /// Returns the variables for which other ranks had a gradient and this one had none: it counted
    /// as zero, and this rank has the average now.
    #[must_use]
    pub fn counted_as_zero(&self) -> &[String] {
        &self.elsewhere
    }

    /// Returns the L2 norm of all averages together before they were clipped, the same on every
    /// rank: with [`Options::max_norm`](crate::Options::max_norm).
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

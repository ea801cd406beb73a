//! Options of training.

use std::time::Instant;

use comm_core::Comm;
use comm_ddp::{BucketLimits, Clock};

use crate::{LostGradients, Result};

/// Options of [`DataParallel`](crate::DataParallel) and [`ZeroOptimizer`](crate::ZeroOptimizer) in
/// host memory. Except for the clock, all ranks use those of rank 0.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// The sizes at which buckets of gradients are full.
    pub limits: BucketLimits,
    /// The maximum norm of all averaged gradients together. If their norm is larger, all are scaled
    /// down to it.
    pub max_norm: Option<f64>,
    /// The response to variables for which no rank has a gradient in the first step.
    pub lost_gradients: LostGradients,
    /// Whether each rank also keeps a copy of the state of the rank before it, for
    /// [`ZeroOptimizer::rejoin`](crate::ZeroOptimizer::rejoin). Only
    /// [`ZeroOptimizer`](crate::ZeroOptimizer) uses this.
    pub replicate_state: bool,
    /// The clock of [`Report::timeline`](crate::Report::timeline).
    pub clock: Clock,
}

/// Setters, as in `Options::DEFAULT.max_norm(Some(1.0))`.
impl Options {
    /// Returns buckets of 1 MiB, then 25 MiB, no maximum norm, a warning for lost gradients, no
    /// copies of the state, and the system clock.
    pub const DEFAULT: Self = Self {
        limits: BucketLimits::DEFAULT,
        max_norm: None,
        lost_gradients: LostGradients::Warn,
        replicate_state: false,
        clock: Instant::now,
    };

    comm_core::setters!(
        limits: BucketLimits,
        max_norm: Option<f64>,
        lost_gradients: LostGradients,
        replicate_state: bool,
        clock: Clock
    );

    /// Returns the options of the rank `root`, with this clock. The limits and copies are left to
    /// `comm-ddp`. This is a collective.
    pub(crate) fn agree(self, comm: &Comm, root: usize) -> Result<Self> {
        let lost = LostGradients::ALL.iter().position(|policy| *policy == self.lost_gradients);
        let has_max_norm = u64::from(self.max_norm.is_some());
        let mut words = [has_max_norm, self.max_norm.unwrap_or(0.0).to_bits(), lost.unwrap_or(0) as u64];
        comm.broadcast(root, &mut words)?;
        let [has_max_norm, max_norm, lost] = words;
        let lost = usize::try_from(lost).ok().and_then(|lost| LostGradients::ALL.get(lost));
        Ok(Self {
            max_norm: (has_max_norm != 0).then(|| f64::from_bits(max_norm)),
            lost_gradients: lost.copied().unwrap_or(self.lost_gradients),
            ..self
        })
    }

    /// Returns the options of `comm-ddp`.
    pub(crate) const fn of_buckets(self) -> comm_ddp::Options {
        comm_ddp::Options::DEFAULT.limits(self.limits).replicate_state(self.replicate_state).clock(self.clock)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

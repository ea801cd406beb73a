//! Steps whose blocks were looked up.

use std::ops::Range;

use comm_core::{Action, Layout, Step};

/// A step, and where in the arrays of the call its blocks lie, in bytes.
#[derive(Debug, Clone)]
pub struct Located {
    pub(super) step: Step,
    /// The blocks at the place of the step.
    pub(super) bytes: Range<usize>,
    /// The same blocks where the other operand of a local step lies.
    pub(super) other: Range<usize>,
}

/// Where no array has bytes: what uses it fails.
const NOWHERE: Range<usize> = usize::MAX - 1..usize::MAX;

impl Located {
    /// Looks up where the blocks of a step lie. Blocks that an array does not hold make the step fail when its turn
    /// comes.
    #[must_use]
    pub fn new(step: Step, layout: &Layout) -> Self {
        let located = |place| layout.bytes(place, step.blocks).unwrap_or(NOWHERE);
        let other = match step.action {
            Action::Reduce { with: place } | Action::Copy { from: place } => located(place),
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } | Action::Finish => 0..0,
        };
        Self { step, bytes: located(step.place), other }
    }
}

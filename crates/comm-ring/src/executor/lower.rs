//! Steps with their blocks resolved to bytes and their dependencies found.

use std::ops::Range;

use comm_core::{Action, Blocks, Layout, Place, Reduction, Step};

use super::window::Window;

/// A step with the byte ranges of its operands, and the earlier steps that it conflicts with.
#[derive(Debug, Clone, Copy)]
pub struct LoweredStep {
    pub(super) action: Action,
    pub(super) place: Place,
    /// The blocks at the place of the step.
    pub(super) bytes: ByteRange,
    /// The same blocks at [`Step::src`].
    pub(super) src: ByteRange,
    /// The conflicting ones of the 63 steps before: the highest bit is the step directly before,
    /// and so on backwards.
    pub(super) deps: u64,
}

/// The bit of the step before.
const PREVIOUS: u64 = 1 << (u64::BITS - 1);

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteRange {
    start: usize,
    end: usize,
}

impl ByteRange {
    pub(super) const NONE: Self = Self { start: 0, end: 0 };
    /// A range outside every array: its use is an error.
    const INVALID: Self = Self { start: usize::MAX - 1, end: usize::MAX };

    #[inline]
    pub(super) const fn range(self) -> Range<usize> {
        self.start..self.end
    }

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Lowers the steps of a schedule in their order.
#[derive(Debug)]
pub(super) struct Lowering {
    /// The last steps: number `n` at `n % LENGTH`.
    recent: Box<[Step; Self::LENGTH]>,
    count: usize,
}

impl Default for Lowering {
    fn default() -> Self {
        let unused = Step::finish(Place::Output, Blocks { first: 0, count: 0 });
        Self { recent: Box::new([unused; Self::LENGTH]), count: 0 }
    }
}

/// Lowers the steps of a schedule. Leaves out the steps that finish a reduction whose operator
/// needs none.
///
/// A step whose blocks an array does not hold fails when the executor runs it.
pub fn lower(
    steps: impl Iterator<Item = Step>,
    layout: &Layout,
    reduction: Option<Reduction>,
) -> impl Iterator<Item = LoweredStep> {
    let mut lowering = Lowering::default();
    let finishes = reduction.is_some_and(Reduction::has_finish);
    // No other step may be left out, not even one without bytes: later steps depend on the same
    // steps through it.
    steps
        .filter(move |step| finishes || step.action != Action::Finish)
        .map(move |step| lowering.lower(step, layout))
}

impl Lowering {
    /// The window holds no more steps at once, so a step cannot conflict with an older one that is
    /// unfinished.
    const LENGTH: usize = Window::CAPACITY_MAX;

    pub(super) fn lower(&mut self, step: Step, layout: &Layout) -> LoweredStep {
        let bytes = |place| {
            let bytes = layout.bytes(place, step.blocks);
            bytes.map_or(ByteRange::INVALID, |Range { start, end }| ByteRange { start, end })
        };
        let lowered = LoweredStep {
            action: step.action,
            place: step.place,
            bytes: bytes(step.place),
            src: step.src().map_or(ByteRange::NONE, bytes),
            deps: self.deps(&step),
        };
        self.recent[self.count % Self::LENGTH] = step;
        self.count += 1;
        lowered
    }

    /// Returns the recent steps that conflict with this one, as in [`LoweredStep::deps`].
    fn deps(&self, step: &Step) -> u64 {
        // A step as far back as the window is long has left it.
        let oldest = self.count.min(Self::LENGTH - 1);
        let back = |distance: usize| &self.recent[(self.count - 1 - distance) % Self::LENGTH];
        (0..oldest)
            .filter(|&distance| step.conflicts(back(distance)))
            .fold(0, |deps, distance| deps | PREVIOUS >> distance)
    }
}

#[cfg(test)]
mod tests {
    use comm_core::{DType, Partition, ReduceOp};

    use super::*;

    const SLOT: Place = Place::Scratch { slot: 0 };

    fn lowered(steps: &[Step], op: ReduceOp) -> Vec<LoweredStep> {
        let layout = Layout::uniform(&Partition::even(8, 2));
        let reduction = Reduction::new(op, DType::F32).unwrap();
        lower(steps.iter().copied(), &layout, Some(reduction)).collect()
    }

    #[test]
    fn a_receive_that_reduces_depends_on_the_writer_of_its_addend_and_on_users_of_its_place() {
        let block = Blocks::one(1);
        let steps = [
            Step::recv(1, Place::Output, block),
            Step::send(1, SLOT, Blocks::one(0)),
            Step::recv_reduce(1, SLOT, Place::Output, block),
            Step::recv(1, Place::Output, block),
            Step::send(1, SLOT, block),
        ];
        let lowered = lowered(&steps, ReduceOp::Sum);
        assert_eq!((lowered[2].bytes.range(), lowered[2].src.range()), (0..4, 4..8));
        let deps: Vec<u64> = lowered.iter().map(|step| step.deps).collect();
        assert_eq!(deps, [0, 0, PREVIOUS | PREVIOUS >> 1, PREVIOUS | PREVIOUS >> 2, PREVIOUS >> 1]);
    }

    #[test]
    fn steps_that_finish_a_reduction_remain_only_if_the_operator_needs_them() {
        let steps =
            [Step::recv(1, Place::Output, Blocks::one(1)), Step::finish(Place::Output, Blocks::one(1))];
        assert_eq!(lowered(&steps, ReduceOp::Avg).len(), 2);
        assert_eq!(lowered(&steps, ReduceOp::Sum).len(), 1);
    }
}

//! Lowers steps: resolves their blocks to bytes and finds their dependencies.

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
    /// The set of the steps that conflict with this one, among the 63 before it. The highest bit is
    /// the step directly before, the next bit the one before that.
    pub(super) deps: u64,
    /// Whether the step also completes the reduction of its blocks.
    pub(super) completes: bool,
    /// Whether the next step depends on this one, or there is none.
    pub(super) is_awaited: bool,
    /// Whether this is a receive, and the next step reduces the message and alone reads it.
    pub(super) is_only_reduced: bool,
}

/// The bit of the step directly before.
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

    const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
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

/// Lowers the steps of a schedule. Omits steps that finish a reduction if its operator does not
/// need them. Also omits a step that finishes a reduction directly after the step that combines the
/// same blocks, which then does both in one pass over memory.
///
/// A step with blocks outside its array fails when the executor runs it.
pub fn lower(
    steps: impl Iterator<Item = Step>,
    layout: &Layout,
    reduction: Option<Reduction>,
) -> impl Iterator<Item = LoweredStep> {
    let mut lowering = Lowering::default();
    let finishes = reduction.is_some_and(Reduction::has_finish);
    // No other step may be omitted, not even one without bytes, because later steps may depend on
    // earlier ones through it. A step that depends on an omitted one also depends on the step
    // before that.
    let mut steps = steps.filter(move |step| finishes || step.action != Action::Finish).peekable();
    let lowered = std::iter::from_fn(move || {
        let step = steps.next()?;
        let completes = steps.next_if(|next| is_completed_by(&step, next)).is_some();
        Some(LoweredStep { completes, ..lowering.lower(step, layout) })
    });
    let mut lowered = lowered.peekable();
    std::iter::from_fn(move || {
        let step = lowered.next()?;
        let is_awaited = lowered.peek().is_none_or(|next| next.deps & PREVIOUS != 0);
        Some(LoweredStep { is_awaited, ..step })
    })
}

/// Returns whether `next` finishes the result that `step` combines.
fn is_completed_by(step: &Step, next: &Step) -> bool {
    let combines = matches!(step.action, Action::Reduce { .. } | Action::RecvReduce { .. });
    combines && next.action == Action::Finish && (next.place, next.blocks) == (step.place, step.blocks)
}

/// Finds the receives into scratch whose only reader is the step after them. In long schedules it
/// finds none, because it compares all steps with each other.
pub fn mark_only_reduced(steps: &mut [LoweredStep]) {
    const STEPS_MAX: usize = 64;
    if steps.len() > STEPS_MAX {
        return;
    }
    for at in 1..steps.len() {
        let (received, reduce) = (steps[at - 1], steps[at]);
        let reduces = matches!(reduce.action, Action::Reduce { with } if with == received.place)
            && reduce.src == received.bytes
            && reduce.place == Place::Output;
        steps[at - 1].is_only_reduced =
            reduces && received.receives_into_scratch() && !is_read(received.bytes, &steps[at + 1..]);
    }
}

/// Returns whether a step reads scratch at these bytes before another one has overwritten all of
/// them.
fn is_read(bytes: ByteRange, steps: &[LoweredStep]) -> bool {
    let overwrites = |step: &&LoweredStep| step.receives_into_scratch() && step.bytes.contains(bytes);
    let end = steps.iter().position(|step| overwrites(&step)).unwrap_or(steps.len());
    steps[..end].iter().any(|step| step.reads_scratch(bytes))
}

impl LoweredStep {
    const fn receives_into_scratch(&self) -> bool {
        matches!((self.action, self.place), (Action::Recv { .. }, Place::Scratch { .. }))
    }

    /// Returns whether the step may read scratch at one of these bytes.
    fn reads_scratch(&self, bytes: ByteRange) -> bool {
        let is_scratch = |place| matches!(place, Place::Scratch { .. });
        let reads_place = !matches!(self.action, Action::Recv { .. } | Action::Copy { .. });
        let reads_src = match self.action {
            Action::Reduce { with } | Action::RecvReduce { with, .. } | Action::Copy { from: with } => {
                is_scratch(with)
            }
            Action::Send { .. } | Action::Recv { .. } | Action::Finish => false,
        };
        (reads_place && is_scratch(self.place) && self.bytes.overlaps(bytes))
            || (reads_src && self.src.overlaps(bytes))
    }
}

impl Lowering {
    /// The window never holds more steps, so older steps have finished and cannot conflict.
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
            completes: false,
            is_awaited: false,
            is_only_reduced: false,
        };
        self.recent[self.count % Self::LENGTH] = step;
        self.count += 1;
        lowered
    }

    /// Returns the recent steps that conflict with this one, as in [`LoweredStep::deps`].
    fn deps(&self, step: &Step) -> u64 {
        // A step that lies a whole window back has left it.
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
    fn a_step_is_awaited_if_the_next_one_depends_on_it_or_there_is_none() {
        let [first, second] = [0, 1].map(Blocks::one);
        let steps = [
            Step::send(1, Place::Output, first),
            Step::recv(1, Place::Output, second),
            Step::send(1, Place::Output, second),
            Step::recv(1, SLOT, second),
        ];
        let awaited = |steps: &[Step]| -> Vec<bool> {
            lowered(steps, ReduceOp::Sum).iter().map(|step| step.is_awaited).collect()
        };
        assert_eq!(awaited(&steps), [false, true, false, true]);
        let finish = Step::finish(Place::Output, first);
        assert_eq!(awaited(&[steps[1], finish, steps[2]]), [true, true], "an omitted step");
    }

    #[test]
    fn a_receive_is_only_reduced_if_no_step_after_the_next_reads_what_it_receives() {
        let (whole, half) = (Blocks { first: 0, count: 2 }, Blocks::one(0));
        let (recv, reduce) = (Step::recv(1, SLOT, whole), Step::reduce(Place::Output, SLOT, whole));
        let marked = |steps: &[Step]| {
            let mut lowered = lowered(steps, ReduceOp::Sum);
            mark_only_reduced(&mut lowered);
            lowered.iter().map(|step| step.is_only_reduced).collect::<Vec<_>>()
        };
        let send = Step::send(1, Place::Output, whole);
        assert_eq!(marked(&[send, recv, reduce, send]), [false, true, false, false]);
        assert_eq!(marked(&[recv, reduce, recv, reduce]), [true, false, true, false]);
        assert_eq!(marked(&[recv, send, reduce]), [false; 3], "another step is between them");
        let elsewhere = Place::Scratch { slot: 2 };
        assert_eq!(marked(&[recv, Step::reduce(Place::Output, elsewhere, whole)]), [false; 2]);
        assert_eq!(marked(&[recv, Step::reduce(elsewhere, SLOT, whole)]), [false; 2]);
        assert_eq!(marked(&[recv, Step::reduce(Place::Output, SLOT, half)]), [false; 2]);
        for reader in [
            reduce,
            Step::send(2, SLOT, half),
            Step::copy(Place::Output, SLOT, half),
            Step::reduce(SLOT, Place::Output, half),
            Step::recv_reduce(2, Place::Output, SLOT, whole),
            Step::recv_reduce(2, SLOT, SLOT, half),
        ] {
            assert_eq!(marked(&[recv, reduce, reader]), [false; 3], "{reader:?}");
            assert_eq!(marked(&[recv, reduce, Step::recv(2, SLOT, half), reader]), [false; 4], "{reader:?}");
            let overwritten = marked(&[recv, reduce, Step::recv(2, SLOT, whole), reader]);
            assert!(overwritten[0], "{reader:?}");
        }
        let long = [recv, reduce].repeat(40);
        assert_eq!(marked(&long), vec![false; 80]);
    }

    #[test]
    fn steps_that_finish_a_reduction_remain_only_if_the_operator_needs_them() {
        let steps =
            [Step::recv(1, Place::Output, Blocks::one(1)), Step::finish(Place::Output, Blocks::one(1))];
        assert_eq!(lowered(&steps, ReduceOp::Avg).len(), 2);
        assert_eq!(lowered(&steps, ReduceOp::Sum).len(), 1);
    }

    #[test]
    fn the_step_that_combines_blocks_last_also_finishes_them() {
        let (block, other) = (Blocks::one(1), Blocks::one(0));
        let finish = Step::finish(Place::Output, block);
        let completes = |step: Step, finish: Step| {
            let steps = [step, finish, Step::send(1, Place::Output, block)];
            let lowered = lowered(&steps, ReduceOp::Avg);
            let (first, last) = (lowered[0], lowered[lowered.len() - 1]);
            assert_eq!(last.deps & PREVIOUS, PREVIOUS, "the send waits for the step before it");
            (first.completes, lowered.len())
        };
        let received = Step::recv_reduce(1, Place::Output, Place::Output, block);
        assert_eq!(completes(received, finish), (true, 2));
        assert_eq!(completes(Step::reduce(Place::Output, SLOT, block), finish), (true, 2));
        assert_eq!(completes(Step::recv(1, Place::Output, block), finish), (false, 3));
        let elsewhere = Step::recv_reduce(1, SLOT, SLOT, block);
        assert_eq!(lowered(&[elsewhere, finish], ReduceOp::Avg).len(), 2);
        let of_other = Step::recv_reduce(1, Place::Output, Place::Output, other);
        assert_eq!(lowered(&[of_other, finish], ReduceOp::Avg).len(), 2);
        assert!(!lowered(&[received, finish], ReduceOp::Sum)[0].completes);
    }
}

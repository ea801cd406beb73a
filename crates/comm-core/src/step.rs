//! The steps of schedules of collectives.
//!
//! A schedule is a lazy iterator of [`Step`]s per rank. The executor keeps these rules, and the
//! verifier checks them:
//!
//! 1. A step may start when it conflicts with no earlier unfinished step. Two steps conflict if
//!    their operands overlap and at least one of the overlapping operands is written. There is no
//!    other ordering.
//! 2. Messages from one rank to another match in program order.
//! 3. A schedule completes without buffering, so that a send ends only when its receive is posted,
//!    and with a window of [`Step::WINDOW_MIN`] steps.
//! 4. A schedule is a pure function of group, root and segments; it never depends on data.

/// A contiguous range of blocks of the collective's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first block.
    pub first: usize,
    /// The number of blocks.
    pub count: usize,
}

impl Blocks {
    /// Returns the range of one block.
    #[must_use]
    #[inline]
    pub const fn one(block: usize) -> Self {
        Self { first: block, count: 1 }
    }

    /// Returns the block after the last one.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.first + self.count
    }

    /// Returns whether a block is in the range.
    #[must_use]
    pub const fn contains(self, block: usize) -> bool {
        self.first <= block && block < self.end()
    }
}

/// An array that holds blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The caller's input. No step may write to it.
    Input,
    /// The caller's output. In an in-place call, it initially holds the input.
    Output,
    /// Temporary memory, in slots that hold one block each. A range of blocks occupies the same
    /// number of consecutive slots and is packed from the start of the first slot: it must be read
    /// as the range that was written, not slot by slot. If all blocks have the same size, which a
    /// schedule may require, each block of a range is in its own slot.
    Scratch {
        /// The slot of the first block.
        slot: usize,
    },
}

/// The operation of a step on its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the blocks to a rank.
    Send {
        /// The receiver.
        to: usize,
    },
    /// Receives into the blocks.
    Recv {
        /// The sender.
        from: usize,
    },
    /// Receives the same blocks, combines them with an addend, and stores the result in the blocks:
    /// NCCL's recvReduceCopy.
    RecvReduce {
        /// The sender.
        from: usize,
        /// The place of the addend, which is the same blocks there. It may be the place of the
        /// result.
        with: Place,
    },
    /// Combines the same blocks of another place into the blocks.
    Reduce {
        /// The place of the other operand.
        with: Place,
    },
    /// Copies the same blocks of another place into the blocks.
    Copy {
        /// The place of the source.
        from: Place,
    },
    /// Completes the reduction of the blocks, such as by the division of an average. Occurs once
    /// per block.
    Finish,
}

/// One step of a schedule: an action on a range of blocks in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The blocks.
    pub blocks: Blocks,
    /// The place that the step writes to, or for a send the place that it reads from.
    pub place: Place,
    /// The operation.
    pub action: Action,
}

/// An operand of a step: a range of blocks or slots in one array, and whether the step writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOperand {
    /// 0 for input, 1 for output, 2 for scratch.
    array: u8,
    first: usize,
    end: usize,
    writes: bool,
}

impl StepOperand {
    #[inline]
    const fn new(place: Place, blocks: Blocks, writes: bool) -> Self {
        let (array, first) = match place {
            Place::Input => (0, blocks.first),
            Place::Output => (1, blocks.first),
            Place::Scratch { slot } => (2, slot),
        };
        Self { array, first, end: first + blocks.count, writes }
    }

    /// Returns whether the two overlap and at least one of them is written.
    #[must_use]
    #[inline]
    pub const fn conflicts(self, other: Self) -> bool {
        self.array == other.array
            && self.first < other.end
            && other.first < self.end
            && (self.writes || other.writes)
    }
}

impl Step {
    /// The smallest window in which every schedule must complete: two steps, so that a rank can
    /// send and receive at the same time.
    pub const WINDOW_MIN: usize = 2;

    /// Sends `blocks` from `place` to a rank.
    #[must_use]
    pub const fn send(to: usize, place: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Send { to } }
    }

    /// Receives `blocks` into `place` from a rank.
    #[must_use]
    pub const fn recv(from: usize, place: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Recv { from } }
    }

    /// Receives `blocks` from a rank, combines them with those at `with`, and stores the result at
    /// `place`.
    #[must_use]
    pub const fn recv_reduce(from: usize, place: Place, with: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::RecvReduce { from, with } }
    }

    /// Combines `blocks` at `with` into `place`.
    #[must_use]
    pub const fn reduce(place: Place, with: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Reduce { with } }
    }

    /// Copies `blocks` at `from` into `place`.
    #[must_use]
    pub const fn copy(place: Place, from: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Copy { from } }
    }

    /// Completes the reduction of `blocks` at `place`.
    #[must_use]
    pub const fn finish(place: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Finish }
    }

    /// Returns the second place that the step reads: the addend or the source.
    #[must_use]
    #[inline]
    pub const fn src(&self) -> Option<Place> {
        match self.action {
            Action::RecvReduce { with: src, .. }
            | Action::Reduce { with: src }
            | Action::Copy { from: src } => Some(src),
            Action::Send { .. } | Action::Recv { .. } | Action::Finish => None,
        }
    }

    /// Returns whether the step updates its blocks in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match self.action {
            Action::RecvReduce { with, .. } => with == self.place,
            Action::Reduce { .. } | Action::Finish => true,
            Action::Send { .. } | Action::Recv { .. } | Action::Copy { .. } => false,
        }
    }

    /// Returns the operands in memory: the blocks at the place of the step, and those at
    /// [`src`](Self::src).
    #[must_use]
    #[inline]
    pub const fn operands(&self) -> (StepOperand, Option<StepOperand>) {
        let writes = !matches!(self.action, Action::Send { .. });
        let src = match self.src() {
            Some(src) => Some(StepOperand::new(src, self.blocks, false)),
            None => None,
        };
        (StepOperand::new(self.place, self.blocks, writes), src)
    }

    /// Returns whether this step must wait for an `earlier` unfinished one: two of their operands
    /// overlap, and at least one of the two is written.
    #[must_use]
    #[inline]
    pub fn conflicts(&self, earlier: &Self) -> bool {
        let (place, src) = self.operands();
        let (earlier_place, earlier_src) = earlier.operands();
        place.conflicts(earlier_place)
            || src.is_some_and(|src| src.conflicts(earlier_place))
            || earlier_src.is_some_and(|earlier_src| earlier_src.conflicts(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Place = Place::Output;

    #[test]
    fn two_reads_of_a_block_do_not_conflict() {
        let first = Step::send(1, OUT, Blocks::one(3));
        let second = Step::send(2, OUT, Blocks { first: 2, count: 4 });
        assert!(!second.conflicts(&first));
    }

    #[test]
    fn a_write_conflicts_with_any_overlap_in_the_same_array_only() {
        let send = Step::send(1, OUT, Blocks { first: 2, count: 2 });
        assert!(Step::recv(1, OUT, Blocks::one(3)).conflicts(&send));
        assert!(!Step::recv(1, OUT, Blocks::one(4)).conflicts(&send));
        assert!(!Step::recv(1, Place::Scratch { slot: 3 }, Blocks::one(3)).conflicts(&send));
    }

    #[test]
    fn scratch_conflicts_by_slot_not_by_block() {
        let first = Step::recv(1, Place::Scratch { slot: 0 }, Blocks::one(7));
        assert!(Step::recv(1, Place::Scratch { slot: 0 }, Blocks::one(8)).conflicts(&first));
        assert!(!Step::recv(1, Place::Scratch { slot: 1 }, Blocks::one(7)).conflicts(&first));
    }

    #[test]
    fn the_source_of_a_step_conflicts_with_writes_only() {
        let (slot, block) = (Place::Scratch { slot: 0 }, Blocks::one(0));
        let recv = Step::recv(1, slot, block);
        let readers = [
            Step::reduce(OUT, slot, block),
            Step::copy(OUT, slot, block),
            Step::recv_reduce(2, OUT, slot, block),
        ];
        for reader in readers {
            assert!(reader.conflicts(&recv) && recv.conflicts(&reader), "{reader:?}");
            assert!(!reader.conflicts(&Step::send(1, slot, block)), "{reader:?}");
        }
    }

    #[test]
    fn a_receive_that_reduces_in_place_writes_its_addend() {
        let block = Blocks::one(0);
        let in_place = Step::recv_reduce(2, OUT, OUT, block);
        assert!(in_place.conflicts(&Step::send(1, OUT, block)));
    }
}

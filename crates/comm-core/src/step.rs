//! What a collective does, step by step.
//!
//! A collective is described by a lazy iterator of [`Step`]s per rank. The rules, which an executor keeps and a
//! verifier checks:
//!
//! 1. A step may start when no earlier unfinished step touches an overlapping place with a write among the two.
//!    That is all the ordering there is.
//! 2. Between two ranks, messages in one direction match in program order.
//! 3. A schedule completes with zero buffering, where a send ends only when its receive is posted, and with a
//!    window of [`Step::WINDOW_MIN`] steps.
//! 4. A schedule is a pure function of group, root and segments; it never looks at data.

/// A contiguous range of blocks of the collective's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first block.
    pub first: usize,
    /// How many blocks.
    pub count: usize,
}

impl Blocks {
    /// The range of one block.
    #[must_use]
    #[inline]
    pub const fn one(block: usize) -> Self {
        Self { first: block, count: 1 }
    }

    /// The block after the last one.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.first + self.count
    }

    /// Whether a block is in the range.
    #[must_use]
    pub const fn contains(self, block: usize) -> bool {
        self.first <= block && block < self.end()
    }
}

/// Where blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The caller's input, which no step may write.
    Input,
    /// The caller's output. In an in-place call it holds the input at the start.
    Output,
    /// Temporary memory, in slots that hold one block each. A range of blocks takes that many slots in a row and lies
    /// packed from the first one on: it is read as the range that was written, not slot by slot. Only if all blocks
    /// have the same size, which a schedule may ask for, a range is its slots one by one.
    Scratch {
        /// The slot of the first block.
        slot: usize,
    },
}

/// What happens to the blocks of a step.
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
    /// Receives and combines what arrives with the blocks.
    RecvReduce {
        /// The sender.
        from: usize,
    },
    /// Combines the same blocks, lying elsewhere, into these.
    Reduce {
        /// Where the other operand lies.
        with: Place,
    },
    /// Copies the same blocks, lying elsewhere, into these.
    Copy {
        /// Where the source lies.
        from: Place,
    },
    /// Ends the reduction of the blocks: the division of an average. Once per block.
    Finish,
}

/// One step of a schedule: an action on a range of blocks in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// Which blocks.
    pub blocks: Blocks,
    /// Where they lie.
    pub place: Place,
    /// What happens to them.
    pub action: Action,
}

/// A run of blocks or slots in one array, and whether it is written: what decides if two steps conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// 0 for input, 1 for output, 2 for scratch.
    array: u8,
    first: usize,
    end: usize,
    writes: bool,
}

impl Touch {
    #[inline]
    const fn new(place: Place, blocks: Blocks, writes: bool) -> Self {
        let (array, first) = match place {
            Place::Input => (0, blocks.first),
            Place::Output => (1, blocks.first),
            Place::Scratch { slot } => (2, slot),
        };
        Self { array, first, end: first + blocks.count, writes }
    }

    /// Whether the two overlap with a write among them.
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
    /// The smallest window, in steps, in which every schedule must complete: two, so that a rank can send and
    /// receive at the same time.
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

    /// Receives `blocks` from a rank and combines them into `place`.
    #[must_use]
    pub const fn recv_reduce(from: usize, place: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::RecvReduce { from } }
    }

    /// Combines `blocks` lying at `with` into `place`.
    #[must_use]
    pub const fn reduce(place: Place, with: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Reduce { with } }
    }

    /// Copies `blocks` lying at `from` into `place`.
    #[must_use]
    pub const fn copy(place: Place, from: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Copy { from } }
    }

    /// Ends the reduction of `blocks` in `place`.
    #[must_use]
    pub const fn finish(place: Place, blocks: Blocks) -> Self {
        Self { blocks, place, action: Action::Finish }
    }

    /// What the step touches: its own blocks, and the other operand of a local step.
    #[must_use]
    #[inline]
    pub const fn touches(&self) -> (Touch, Option<Touch>) {
        let own = Touch::new(self.place, self.blocks, !matches!(self.action, Action::Send { .. }));
        let other = match self.action {
            Action::Reduce { with: place } | Action::Copy { from: place } => {
                Some(Touch::new(place, self.blocks, false))
            }
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } | Action::Finish => None,
        };
        (own, other)
    }

    /// Whether this step must wait for an `earlier` unfinished one: they touch the same place, and one writes.
    #[must_use]
    #[inline]
    pub fn conflicts(&self, earlier: &Self) -> bool {
        let (ours, our_other) = self.touches();
        let (theirs, their_other) = earlier.touches();
        ours.conflicts(theirs)
            || our_other.is_some_and(|other| other.conflicts(theirs))
            || their_other.is_some_and(|other| other.conflicts(ours))
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
    fn the_other_operand_of_a_local_step_counts() {
        let recv = Step::recv(1, Place::Scratch { slot: 0 }, Blocks::one(0));
        let reduce = Step::reduce(OUT, Place::Scratch { slot: 0 }, Blocks::one(0));
        assert!(reduce.conflicts(&recv));
        assert!(recv.conflicts(&reduce));
        assert!(!reduce.conflicts(&Step::send(1, Place::Scratch { slot: 0 }, Blocks::one(0))));
    }
}

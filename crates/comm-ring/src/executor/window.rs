//! The steps that are under way: a run of a schedule from the oldest unfinished step on.

use std::collections::VecDeque;

use comm_core::Step;

use super::carry::Carry;
use crate::message::Header;

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not started, or partly moved.
    Open,
    /// A send whose bytes are all accepted, but not yet released by the transport.
    Accepted {
        /// The position in the stream that must be released.
        until: u64,
    },
    /// Finished.
    Done,
}

/// A step in the window.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) step: Step,
    pub(super) stage: Stage,
    /// Bytes moved so far, the header's included.
    pub(super) moved: usize,
    /// The header of the message that is being sent or received.
    pub(super) header: [u8; Header::BYTES],
    /// The start of an element whose rest has not arrived.
    pub(super) carry: Carry,
    /// An earlier step that this one waits for, by its number.
    blocker: Option<u64>,
}

/// The window. Steps are numbered from the start of the schedule.
#[derive(Debug)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    /// The number of the first entry.
    first: u64,
    capacity: usize,
}

impl Window {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(Step::WINDOW_MIN);
        Self { entries: VecDeque::with_capacity(capacity), first: 0, capacity }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.first = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() == self.capacity
    }

    pub(super) fn push(&mut self, step: Step) {
        let header = [0; Header::BYTES];
        let carry = Carry::default();
        self.entries.push_back(Entry { step, stage: Stage::Open, moved: 0, header, carry, blocker: None });
    }

    pub(super) fn entry(&mut self, at: usize) -> &mut Entry {
        &mut self.entries[at]
    }

    /// Drops finished steps from the front.
    pub(super) fn retire(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.stage == Stage::Done) {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Whether an earlier unfinished step conflicts with the one at `at`. The answer is remembered, so that a step
    /// that waits costs one look per pass.
    pub(super) fn is_blocked(&mut self, at: usize) -> bool {
        let entry = &self.entries[at];
        if entry.moved > 0 {
            return false;
        }
        if let Some(blocker) = entry.blocker
            && let Some(index) = blocker.checked_sub(self.first)
            && self.entries[index as usize].stage != Stage::Done
        {
            return true;
        }
        let earlier = self.entries.iter().take(at);
        let found = earlier
            .enumerate()
            .find(|(_, other)| other.stage != Stage::Done && entry.step.conflicts(&other.step))
            .map(|(index, _)| self.first + index as u64);
        self.entries[at].blocker = found;
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Blocks, Place};

    #[test]
    fn a_step_waits_for_every_earlier_conflict_and_no_other() {
        let mut window = Window::new(8);
        window.push(Step::send(1, Place::Output, Blocks::one(0)));
        window.push(Step::send(2, Place::Output, Blocks::one(0)));
        window.push(Step::recv(1, Place::Output, Blocks::one(0)));
        window.push(Step::recv(1, Place::Output, Blocks::one(1)));
        assert_eq!((0..4).map(|at| window.is_blocked(at)).collect::<Vec<_>>(), [false, false, true, false]);
        window.entry(0).stage = Stage::Done;
        assert!(window.is_blocked(2));
        window.retire();
        assert!(window.is_blocked(1), "the second send still reads the block");
        window.entry(0).stage = Stage::Done;
        window.retire();
        assert!(!window.is_blocked(0));
    }
}

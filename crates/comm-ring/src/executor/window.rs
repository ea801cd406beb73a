//! The steps that are under way: a run of a schedule from the oldest unfinished step on.

use std::collections::VecDeque;

use comm_core::Step;

use super::Located;
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
    pub(super) located: Located,
    pub(super) stage: Stage,
    /// Bytes moved so far, the header's included.
    pub(super) moved: usize,
    /// The header of the message that is being sent or received.
    pub(super) header: [u8; Header::BYTES],
    /// The start of an element whose rest has not arrived.
    pub(super) carry: Carry,
    /// The earlier unfinished steps that this one waits for: bit `number % 64` for each.
    waits_for: u64,
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
    /// The most steps that can be under way.
    const CAPACITY_MAX: usize = 64;

    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(Step::WINDOW_MIN, Self::CAPACITY_MAX);
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

    pub(super) fn push(&mut self, located: Located) {
        let earlier = self.entries.iter().enumerate();
        let waits_for = earlier.fold(0, |bits, (at, other)| {
            let waits = other.stage != Stage::Done && located.step.conflicts(&other.located.step);
            bits | if waits { self.bit(at) } else { 0 }
        });
        let (header, carry) = ([0; Header::BYTES], Carry::default());
        self.entries.push_back(Entry { located, stage: Stage::Open, moved: 0, header, carry, waits_for });
    }

    pub(super) fn entry(&mut self, at: usize) -> &mut Entry {
        &mut self.entries[at]
    }

    /// Takes note that a step has finished: others need not wait for it.
    pub(super) fn finish(&mut self, at: usize) {
        let bit = self.bit(at);
        self.entries[at].stage = Stage::Done;
        self.entries.range_mut(at + 1..).for_each(|later| later.waits_for &= !bit);
    }

    /// Drops finished steps from the front.
    pub(super) fn retire(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.stage == Stage::Done) {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Whether an earlier unfinished step conflicts with the one at `at`.
    pub(super) fn is_blocked(&self, at: usize) -> bool {
        self.entries[at].waits_for != 0
    }

    /// What stands for the step at `at` among those that others wait for.
    const fn bit(&self, at: usize) -> u64 {
        1 << ((self.first + at as u64) % Self::CAPACITY_MAX as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Blocks, Layout, Partition, Place};

    fn push(window: &mut Window, step: Step) {
        let layout = Layout::uniform(&Partition::even(2, 2));
        window.push(Located::new(step, &layout));
    }

    #[test]
    fn a_step_waits_for_every_earlier_conflict_and_no_other() {
        let mut window = Window::new(8);
        push(&mut window, Step::send(1, Place::Output, Blocks::one(0)));
        push(&mut window, Step::send(2, Place::Output, Blocks::one(0)));
        push(&mut window, Step::recv(1, Place::Output, Blocks::one(0)));
        push(&mut window, Step::recv(1, Place::Output, Blocks::one(1)));
        assert_eq!((0..4).map(|at| window.is_blocked(at)).collect::<Vec<_>>(), [false, false, true, false]);
        window.finish(0);
        assert!(window.is_blocked(2));
        window.retire();
        assert!(window.is_blocked(1), "the second send still reads the block");
        window.finish(0);
        window.retire();
        assert!(!window.is_blocked(0));
    }

    #[test]
    fn the_largest_window_takes_up_the_places_of_finished_steps_again() {
        let mut window = Window::new(1000);
        while !window.is_full() {
            push(&mut window, Step::recv(1, Place::Output, Blocks::one(0)));
        }
        for _ in 0..200 {
            assert!(!window.is_blocked(0) && (1..window.len()).all(|at| window.is_blocked(at)));
            window.finish(0);
            window.retire();
            push(&mut window, Step::recv(1, Place::Output, Blocks::one(0)));
        }
    }
}

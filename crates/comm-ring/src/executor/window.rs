//! The steps that are under way: a run of a schedule from the oldest unfinished step on.

use comm_core::{Action, Place, Step};

use super::Located;
use super::carry::Carry;
use super::located::Bytes;
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
}

/// A step in the window.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) located: Located,
    pub(super) stage: Stage,
    /// Bytes moved so far, the header's included.
    pub(super) moved: usize,
    /// The header of the message that is being sent or received, as far as it was moved.
    pub(super) header: [u8; Header::BYTES],
    /// The start of an element whose rest has not arrived.
    pub(super) carry: Carry,
}

impl Entry {
    /// What a place holds that no step has taken yet.
    fn unused() -> Self {
        let (bytes, other) = (Bytes::NONE, Bytes::NONE);
        Self {
            located: Located {
                action: Action::Finish,
                place: Place::Output,
                bytes,
                other,
                own: None,
                waits_for: 0,
            },
            stage: Stage::Open,
            moved: 0,
            header: [0; Header::BYTES],
            carry: Carry::default(),
        }
    }
}

/// The window. Steps are numbered from the start of the schedule, and named by how far they lie behind the first one of
/// the window: so are the bits in a set of steps, which is a word.
#[derive(Debug)]
pub(super) struct Window {
    /// A ring whose length is a power of two: step `number` has the place `number % length`, and is written there.
    entries: Box<[Entry]>,
    /// The number of the first step.
    first: usize,
    len: usize,
    /// Which steps have not finished.
    unfinished: u64,
    capacity: usize,
}

impl Window {
    /// The most steps that can be under way.
    pub(super) const CAPACITY_MAX: usize = u64::BITS as usize;

    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(Step::WINDOW_MIN, Self::CAPACITY_MAX);
        let entries = (0..capacity.next_power_of_two()).map(|_| Entry::unused()).collect();
        Self { entries, first: 0, len: 0, unfinished: 0, capacity }
    }

    #[inline]
    pub(super) const fn clear(&mut self) {
        (self.first, self.len, self.unfinished) = (0, 0, 0);
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Takes up a step behind the others.
    #[inline]
    pub(super) fn push(&mut self, located: &Located) -> &mut Entry {
        let at = self.len;
        self.unfinished |= 1 << at;
        self.len += 1;
        let entry = self.entry(at);
        entry.located = *located;
        (entry.stage, entry.moved) = (Stage::Open, 0);
        entry.carry.clear();
        entry
    }

    #[inline]
    pub(super) fn entry(&mut self, at: usize) -> &mut Entry {
        let place = (self.first + at) & (self.entries.len() - 1);
        &mut self.entries[place]
    }

    /// The steps that are unfinished by now, in their order.
    #[inline]
    pub(super) fn unfinished(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.unfinished;
        std::iter::from_fn(move || {
            let at = rest.trailing_zeros() as usize;
            rest &= rest.checked_sub(1)?;
            Some(at)
        })
    }

    /// Takes note that a step has finished: others need not wait for it.
    #[inline]
    pub(super) const fn finish(&mut self, at: usize) {
        self.unfinished &= !(1 << at);
    }

    /// Drops finished steps from the front.
    #[inline]
    pub(super) fn retire(&mut self) {
        let finished = self.len.min(self.unfinished.trailing_zeros() as usize);
        self.first += finished;
        self.len -= finished;
        self.unfinished = self.unfinished.unbounded_shr(finished as u32);
    }

    /// Whether an earlier unfinished step conflicts with the one at `at`.
    #[inline]
    pub(super) fn is_blocked(&mut self, at: usize) -> bool {
        // What lies before the window is shifted out.
        let earlier = (u64::BITS as usize).saturating_sub(at) as u32;
        self.entry(at).located.waits_for.unbounded_shr(earlier) & self.unfinished != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::located::Locator;
    use comm_core::{Blocks, Layout, Partition};

    /// A window, and the schedule that runs through it.
    struct Run {
        window: Window,
        locator: Locator,
    }

    impl Run {
        fn new(capacity: usize) -> Self {
            Self { window: Window::new(capacity), locator: Locator::default() }
        }

        fn push(&mut self, step: Step) {
            let layout = Layout::uniform(&Partition::even(2, 2));
            self.window.push(&self.locator.locate(step, None, &layout, None).unwrap());
        }
    }

    #[test]
    fn a_step_waits_for_every_earlier_conflict_and_no_other() {
        let mut run = Run::new(8);
        run.push(Step::send(1, Place::Output, Blocks::one(0)));
        run.push(Step::send(2, Place::Output, Blocks::one(0)));
        run.push(Step::recv(1, Place::Output, Blocks::one(0)));
        run.push(Step::recv(1, Place::Output, Blocks::one(1)));
        assert_eq!(
            (0..4).map(|at| run.window.is_blocked(at)).collect::<Vec<_>>(),
            [false, false, true, false]
        );
        run.window.finish(0);
        assert!(run.window.is_blocked(2));
        run.window.retire();
        assert!(run.window.is_blocked(1), "the second send still reads the block");
        run.window.finish(0);
        run.window.retire();
        assert!(!run.window.is_blocked(0));
    }

    #[test]
    fn the_largest_window_takes_up_the_places_of_finished_steps_again() {
        let mut run = Run::new(1000);
        while !run.window.is_full() {
            run.push(Step::recv(1, Place::Output, Blocks::one(0)));
        }
        for _ in 0..200 {
            assert!(
                !run.window.is_blocked(0) && (1..Window::CAPACITY_MAX).all(|at| run.window.is_blocked(at))
            );
            run.window.finish(0);
            run.window.retire();
            run.push(Step::recv(1, Place::Output, Blocks::one(0)));
        }
    }

    #[test]
    fn a_step_does_not_wait_for_one_that_took_the_place_of_a_finished_one() {
        let mut run = Run::new(64);
        run.push(Step::recv(1, Place::Output, Blocks::one(0)));
        run.push(Step::recv(2, Place::Output, Blocks::one(0)));
        while !run.window.is_full() {
            run.push(Step::send(1, Place::Output, Blocks::one(1)));
        }
        run.window.finish(0);
        run.window.retire();
        run.push(Step::send(1, Place::Output, Blocks::one(1)));
        assert!(!run.window.is_blocked(0));
        assert_eq!(run.window.unfinished().collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
    }
}

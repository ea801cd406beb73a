//! The window of unfinished steps: a range of the schedule that starts at the oldest unfinished
//! step.

use comm_core::{Action, Place, Step};

use super::LoweredStep;
use super::lower::ByteRange;
use super::partial_element::PartialElement;
use crate::message::Header;

/// The state of a step in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Not started, or partly moved.
    Open,
    /// A send whose bytes the transport has accepted, but not released.
    Accepted {
        /// The position in the stream that must be released.
        until: u64,
    },
}

/// A step in the window.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) lowered: LoweredStep,
    pub(super) state: EntryState,
    /// The bytes moved so far, including the header.
    pub(super) moved: usize,
    /// The header that is being sent or received.
    pub(super) header: [u8; Header::BYTES],
    /// The start of an element whose rest has not arrived.
    pub(super) partial: PartialElement,
}

impl Entry {
    /// Creates an entry without a step.
    fn unused() -> Self {
        let (action, place, bytes) = (Action::Finish, Place::Output, ByteRange::NONE);
        Self {
            lowered: LoweredStep {
                action,
                place,
                bytes,
                src: bytes,
                deps: 0,
                completes: false,
                is_awaited: false,
                is_only_reduced: false,
            },
            state: EntryState::Open,
            moved: 0,
            header: [0; Header::BYTES],
            partial: PartialElement::default(),
        }
    }
}

/// The window. Its methods identify a step by its offset from the first one in the window, as do
/// the bits of a set of steps.
#[derive(Debug)]
pub(super) struct Window {
    /// A ring buffer whose length is a power of two: step `number` is at `number % length`.
    entries: Box<[Entry]>,
    /// The number of the first step, counted from the start of the schedule.
    first: usize,
    len: usize,
    /// The set of unfinished steps.
    unfinished: u64,
    capacity: usize,
}

impl Window {
    /// The largest capacity.
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

    /// Appends a step.
    #[inline]
    pub(super) fn push(&mut self, lowered: &LoweredStep) -> &mut Entry {
        let at = self.len;
        self.unfinished |= 1 << at;
        self.len += 1;
        let entry = self.entry(at);
        entry.lowered = *lowered;
        (entry.state, entry.moved) = (EntryState::Open, 0);
        entry.partial.clear();
        entry
    }

    #[inline]
    pub(super) fn entry(&mut self, at: usize) -> &mut Entry {
        let place = (self.first + at) & (self.entries.len() - 1);
        &mut self.entries[place]
    }

    /// Returns the steps that are unfinished now, in their order.
    #[inline]
    pub(super) fn unfinished(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.unfinished;
        std::iter::from_fn(move || {
            let at = rest.trailing_zeros() as usize;
            rest &= rest.checked_sub(1)?;
            Some(at)
        })
    }

    /// Marks a step as finished.
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

    /// Returns whether an earlier unfinished step conflicts with the one at `at`.
    #[inline]
    pub(super) fn is_blocked(&mut self, at: usize) -> bool {
        // Steps before the window are shifted out.
        let earlier = (u64::BITS as usize).saturating_sub(at) as u32;
        self.entry(at).lowered.deps.unbounded_shr(earlier) & self.unfinished != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::lower::Lowering;
    use comm_core::{Blocks, Layout, Partition};

    /// A window, and the schedule that passes through it.
    struct WindowRun {
        window: Window,
        lowering: Lowering,
    }

    impl WindowRun {
        fn new(capacity: usize) -> Self {
            Self { window: Window::new(capacity), lowering: Lowering::default() }
        }

        fn push(&mut self, step: Step) {
            let layout = Layout::uniform(&Partition::even(2, 2));
            self.window.push(&self.lowering.lower(step, &layout));
        }
    }

    #[test]
    fn a_step_depends_on_every_earlier_conflict_and_no_other() {
        let mut run = WindowRun::new(8);
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
    fn the_largest_window_reuses_the_entries_of_finished_steps() {
        let mut run = WindowRun::new(1000);
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
    fn a_step_does_not_wait_for_one_that_reuses_the_entry_of_a_finished_one() {
        let mut run = WindowRun::new(64);
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

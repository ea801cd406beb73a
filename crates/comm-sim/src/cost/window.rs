//! The last steps of a rank, for which later ones may have to wait.

use comm_core::{Action, Step, StepOperand};

/// The steps of a rank that may be unfinished at the same time, and their end times.
#[derive(Debug)]
pub(super) struct Window {
    /// A ring buffer of the last steps, for twice the length of a window: the oldest deferred
    /// receive may depend on a window of steps before it, while a window of later steps has already
    /// been added.
    steps: Vec<Timed>,
    capacity: usize,
    /// The index of the next step in the ring buffer.
    next: usize,
    /// The number of steps so far: the position of the next one.
    placed: usize,
}

/// A step, and its end time once it is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    place: StepOperand,
    src: Option<StepOperand>,
    stream: Stream,
    /// The end time; 0 before it is known.
    end: f64,
    /// The latest end of this step and all steps before it, as far as known.
    all_end: f64,
}

/// The direction and the peer of a message: messages of one stream keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream(u64);

/// The earliest start of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    /// The time from which no earlier step conflicts with it.
    pub(super) conflicts: f64,
    /// The time from which no earlier message precedes it in its stream.
    pub(super) stream: f64,
}

impl Window {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(Step::WINDOW_MIN);
        Self { steps: Vec::new(), capacity, next: 0, placed: 0 }
    }

    /// Returns the position of the next step.
    pub(super) const fn position(&self) -> usize {
        self.placed
    }

    /// Returns whether the step at this position must end before the next one can enter the window.
    pub(super) const fn is_full_from(&self, position: usize) -> bool {
        position + self.capacity <= self.placed
    }

    /// Adds the next step, with its end time. If the end is not known yet, [`Self::set_end`] sets
    /// it later.
    pub(super) fn place(&mut self, timed: &Timed, end: Option<f64>) {
        let before = self.placed.checked_sub(1).map_or(0.0, |before| self.at(before).all_end);
        if self.steps.len() < self.places() {
            self.steps.push(*timed);
        } else {
            self.steps[self.next] = *timed;
        }
        let placed = &mut self.steps[self.next];
        placed.end = end.unwrap_or(0.0);
        placed.all_end = placed.end.max(before);
        self.next = if self.next + 1 == self.places() { 0 } else { self.next + 1 };
        self.placed += 1;
    }

    /// Sets the end of a step that was added without an end.
    pub(super) fn set_end(&mut self, position: usize, end: f64) {
        let first = self.index(position);
        self.steps[first].end = end;
        for position in position..self.placed {
            let index = self.index(position);
            let timed = &mut self.steps[index];
            if timed.all_end >= end {
                break;
            }
            timed.all_end = end;
        }
    }

    /// Returns the time at which a step enters the window: when all steps at least a window's
    /// length before it have ended.
    pub(super) fn entered(&self, position: usize) -> f64 {
        position.checked_sub(self.capacity).map_or(0.0, |before| self.at(before).all_end)
    }

    /// Returns the times from which a step can start, none of them before `earliest`, which must
    /// not be before the step entered the window.
    pub(super) fn free(&self, position: usize, timed: &Timed, earliest: f64) -> Free {
        let mut free = Free { conflicts: earliest, stream: earliest };
        for before in (position.saturating_sub(self.capacity - 1)..position).rev() {
            let earlier = self.at(before);
            if earlier.all_end <= free.conflicts {
                break;
            }
            if timed.conflicts(earlier) {
                free.conflicts = free.conflicts.max(earlier.end);
            }
            if timed.stream == earlier.stream {
                free.stream = free.stream.max(earlier.end);
            }
        }
        free
    }

    /// Returns a step, which must not be older than two windows.
    pub(super) fn at(&self, position: usize) -> &Timed {
        &self.steps[self.index(position)]
    }

    fn index(&self, position: usize) -> usize {
        let back = self.placed - position;
        if back <= self.next { self.next - back } else { self.next + self.places() - back }
    }

    const fn places(&self) -> usize {
        2 * self.capacity + 1
    }
}

impl Timed {
    pub(super) fn new(step: &Step) -> Self {
        let (place, src) = step.operands();
        Self { place, src, stream: Stream::of(step.action), end: 0.0, all_end: 0.0 }
    }

    /// Same as [`Step::conflicts`].
    pub(super) fn conflicts(&self, earlier: &Self) -> bool {
        self.place.conflicts(earlier.place)
            || self.src.is_some_and(|src| src.conflicts(earlier.place))
            || earlier.src.is_some_and(|src| src.conflicts(self.place))
    }
}

impl Stream {
    const fn of(action: Action) -> Self {
        Self(match action {
            Action::Send { to } => 2 * to as u64,
            Action::Recv { from } | Action::RecvReduce { from, .. } => 2 * from as u64 + 1,
            Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => u64::MAX,
        })
    }
}

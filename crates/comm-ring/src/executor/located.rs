//! Steps whose blocks were looked up, and that know which steps they must wait for.

use std::ops::Range;

use comm_core::{Action, Blocks, Layout, Place, Reduction, Step};

use super::window::Window;

/// A step, where in the arrays of the call its blocks lie, and which of the steps shortly before it conflict with it.
#[derive(Debug, Clone, Copy)]
pub struct Located {
    pub(super) action: Action,
    pub(super) place: Place,
    /// The blocks at the place of the step.
    pub(super) bytes: Bytes,
    /// The same blocks where the other operand of a local step lies.
    pub(super) other: Bytes,
    /// The last bit stands for the step before, and so on backwards.
    pub(super) waits_for: u64,
}

/// The bit of the step before.
const LAST: u64 = 1 << (u64::BITS - 1);

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    start: usize,
    end: usize,
}

impl Bytes {
    pub(super) const NONE: Self = Self { start: 0, end: 0 };
    /// Where no array has bytes: what uses it fails.
    const NOWHERE: Self = Self { start: usize::MAX - 1, end: usize::MAX };

    #[inline]
    pub(super) const fn range(self) -> Range<usize> {
        self.start..self.end
    }

    #[inline]
    pub(super) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// Takes the steps of a schedule, in their order, and finds out what the executor has to know of them.
#[derive(Debug)]
pub struct Locator {
    /// The last steps: number `n` at `n % LENGTH`.
    recent: Box<[Step; Self::LENGTH]>,
    taken: usize,
}

impl Default for Locator {
    fn default() -> Self {
        let unused = Step::finish(Place::Output, Blocks { first: 0, count: 0 });
        Self { recent: Box::new([unused; Self::LENGTH]), taken: 0 }
    }
}

impl Locator {
    /// No more steps are under way at once, so that a step can only have to wait for so many before it.
    const LENGTH: usize = Window::CAPACITY_MAX;

    /// Looks up a step. `None` if it ends a reduction whose operator has nothing to end. Blocks that an array does not
    /// hold make the step fail when its turn comes.
    #[must_use]
    pub fn locate(&mut self, step: Step, layout: &Layout, reduction: Option<Reduction>) -> Option<Located> {
        let located = |place| {
            let bytes = layout.bytes(place, step.blocks);
            bytes.map_or(Bytes::NOWHERE, |Range { start, end }| Bytes { start, end })
        };
        let bytes = located(step.place);
        let other = match step.action {
            Action::Reduce { with: place } | Action::Copy { from: place } => located(place),
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } | Action::Finish => {
                Bytes::NONE
            }
        };
        // No other step may be left out, not even one without bytes: later ones wait for what it waits for.
        let idle = step.action == Action::Finish && !reduction.is_some_and(Reduction::has_finish);
        (!idle).then(|| {
            let (action, place, waits_for) = (step.action, step.place, self.conflicts(&step));
            self.recent[self.taken % Self::LENGTH] = step;
            self.taken += 1;
            Located { action, place, bytes, other, waits_for }
        })
    }

    /// Which of the last steps conflict with this one, as in [`Located::waits_for`].
    fn conflicts(&self, step: &Step) -> u64 {
        // The one that is as far back as the window is long has left it.
        let far = self.taken.min(Self::LENGTH - 1);
        let back = |distance: usize| &self.recent[(self.taken - 1 - distance) % Self::LENGTH];
        (0..far)
            .filter(|&distance| step.conflicts(back(distance)))
            .fold(0, |set, distance| set | LAST >> distance)
    }
}

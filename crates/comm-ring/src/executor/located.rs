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
    /// The same blocks where the other operand of a local step lies, or what is to be combined with what arrives.
    pub(super) other: Bytes,
    /// Where a receive that reduces finds what to combine, if not where it puts the result.
    pub(super) own: Option<Place>,
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
pub(super) struct Locator {
    /// The last steps: number `n` at `n % LENGTH`.
    recent: Box<[Recent; Self::LENGTH]>,
    taken: usize,
}

/// A step, and the copy that is made along with it.
#[derive(Debug, Clone, Copy)]
struct Recent {
    step: Step,
    copy: Option<Step>,
}

impl Recent {
    fn conflicts(&self, earlier: &Self) -> bool {
        let steps = |recent: &Self| [Some(recent.step), recent.copy].into_iter().flatten();
        steps(self).any(|step| steps(earlier).any(|other| step.conflicts(&other)))
    }
}

impl Default for Locator {
    fn default() -> Self {
        let unused = Step::finish(Place::Output, Blocks { first: 0, count: 0 });
        Self { recent: Box::new([Recent { step: unused, copy: None }; Self::LENGTH]), taken: 0 }
    }
}

/// Looks up the steps of a schedule. Where a block is copied and then reduced into, both are one step, which takes every byte of
/// the copy when it is needed: so it is written once. Steps that end a reduction whose operator has nothing to end are left out.
/// Blocks that an array does not hold make a step fail when its turn comes.
pub fn locate(
    steps: impl Iterator<Item = Step>,
    layout: &Layout,
    reduction: Option<Reduction>,
) -> impl Iterator<Item = Located> {
    let mut locator = Locator::default();
    together(steps).filter_map(move |(step, copy)| locator.locate(step, copy, layout, reduction))
}

/// The steps, each with the copy that is made along with it: the one before a receive that reduces into what was copied.
pub(crate) fn together(steps: impl Iterator<Item = Step>) -> impl Iterator<Item = (Step, Option<Step>)> {
    let mut steps = steps.peekable();
    std::iter::from_fn(move || {
        let step = steps.next()?;
        let receive = steps.next_if(|next| {
            matches!((next.action, step.action), (Action::RecvReduce { .. }, Action::Copy { .. }))
                && (next.place, next.blocks) == (step.place, step.blocks)
        });
        Some(receive.map_or((step, None), |receive| (receive, Some(step))))
    })
}

impl Locator {
    /// No more steps are under way at once, so that a step can only have to wait for so many before it.
    const LENGTH: usize = Window::CAPACITY_MAX;

    /// Looks up a step, and the copy that is made along with it. `None` if it ends a reduction whose operator has nothing to end.
    pub(super) fn locate(
        &mut self,
        step: Step,
        copy: Option<Step>,
        layout: &Layout,
        reduction: Option<Reduction>,
    ) -> Option<Located> {
        let recent = Recent { step, copy };
        let located = |place| {
            let bytes = layout.bytes(place, step.blocks);
            bytes.map_or(Bytes::NOWHERE, |Range { start, end }| Bytes { start, end })
        };
        let bytes = located(step.place);
        let own = match copy.map(|copy| copy.action) {
            Some(Action::Copy { from }) => Some(from),
            _ => None,
        };
        let other = match step.action {
            Action::Reduce { with: place } | Action::Copy { from: place } => located(place),
            Action::RecvReduce { .. } => own.map_or(Bytes::NONE, located),
            Action::Send { .. } | Action::Recv { .. } | Action::Finish => Bytes::NONE,
        };
        // No other step may be left out, not even one without bytes: later ones wait for what it waits for.
        let idle = step.action == Action::Finish && !reduction.is_some_and(Reduction::has_finish);
        (!idle).then(|| {
            let (action, place, waits_for) = (step.action, step.place, self.conflicts(&recent));
            self.recent[self.taken % Self::LENGTH] = recent;
            self.taken += 1;
            Located { action, place, bytes, other, own, waits_for }
        })
    }

    /// Which of the last steps conflict with this one, as in [`Located::waits_for`].
    fn conflicts(&self, recent: &Recent) -> u64 {
        // The one that is as far back as the window is long has left it.
        let far = self.taken.min(Self::LENGTH - 1);
        let back = |distance: usize| &self.recent[(self.taken - 1 - distance) % Self::LENGTH];
        (0..far)
            .filter(|&distance| recent.conflicts(back(distance)))
            .fold(0, |set, distance| set | LAST >> distance)
    }
}

#[cfg(test)]
mod tests {
    use comm_core::{DType, Partition, ReduceOp};

    use super::*;

    const SLOT: Place = Place::Scratch { slot: 0 };

    fn located(steps: &[Step]) -> Vec<Located> {
        let layout = Layout::uniform(&Partition::even(8, 2));
        let sum = Reduction::new(ReduceOp::Sum, DType::U8).unwrap();
        locate(steps.iter().copied(), &layout, Some(sum)).collect()
    }

    #[test]
    fn a_copy_is_made_along_with_the_receive_that_reduces_into_it() {
        let block = Blocks::one(1);
        let (copy, receive) = (Step::copy(SLOT, Place::Output, block), Step::recv_reduce(1, SLOT, block));
        let [both] = located(&[copy, receive])[..] else { panic!("two steps") };
        assert_eq!((both.action, both.place, both.own), (receive.action, SLOT, Some(Place::Output)));
        assert_eq!((both.bytes.range(), both.other.range()), (0..4, 4..8));

        let apart = [
            [copy, Step::recv_reduce(1, SLOT, Blocks::one(0))],
            [copy, Step::recv_reduce(1, Place::Output, block)],
            [copy, Step::recv(1, SLOT, block)],
            [receive, copy],
        ];
        for steps in apart {
            let own: Vec<_> = located(&steps).iter().map(|step| step.own).collect();
            assert_eq!(own, [None, None], "{steps:?}");
        }
    }

    #[test]
    fn both_wait_for_what_either_waits_for_and_what_waits_for_either_waits_for_both() {
        let block = Blocks::one(1);
        let steps = [
            Step::recv(1, Place::Output, block),
            Step::send(1, SLOT, Blocks::one(0)),
            Step::copy(SLOT, Place::Output, block),
            Step::recv_reduce(1, SLOT, block),
            Step::recv(1, Place::Output, block),
            Step::send(1, SLOT, block),
        ];
        let waits: Vec<u64> = located(&steps).iter().map(|step| step.waits_for).collect();
        assert_eq!(waits, [0, 0, LAST | LAST >> 1, LAST | LAST >> 2, LAST >> 1]);
    }
}

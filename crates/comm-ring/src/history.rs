//! The last calls of a communicator, for comparison with those of other ranks.

use std::collections::VecDeque;

use comm_core::Signature;

use crate::control::PastCall;

/// The number of calls that are kept. A peer that is further behind detects a mismatch itself.
const REMEMBERED: u64 = 64;

/// The last calls, with their sequence numbers. Number 0 is the call in which the members agree on
/// their settings.
#[derive(Debug)]
pub(crate) struct History {
    /// The oldest first. The first calls of the first run may have been dropped.
    runs: VecDeque<Repeat>,
    next: u64,
}

/// Consecutive equal calls.
#[derive(Debug)]
struct Repeat {
    call: Signature,
    fingerprint: u64,
    /// The number of the first one.
    first: u64,
}

impl Default for History {
    /// Allocates for the worst case, in which no call equals the one before.
    fn default() -> Self {
        Self { runs: VecDeque::with_capacity(REMEMBERED as usize + 1), next: 0 }
    }
}

impl History {
    /// Returns the number of the last call, or 0 before the first.
    #[inline]
    pub(crate) const fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Records a call with its fingerprint, and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, call: &Signature, fingerprint: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.runs.back().is_none_or(|run| run.fingerprint != fingerprint) {
            self.begin(Repeat { call: call.clone(), fingerprint, first: number });
        }
        number
    }

    fn begin(&mut self, run: Repeat) {
        let oldest = self.oldest();
        while self.runs.get(1).is_some_and(|second| second.first <= oldest) {
            self.runs.pop_front();
        }
        self.runs.push_back(run);
    }

    /// Returns the number of the oldest call that is kept.
    const fn oldest(&self) -> u64 {
        self.next.saturating_sub(REMEMBERED)
    }

    /// Returns the call of this number, unless it is too old or has not been made yet.
    pub(crate) fn get(&self, sequence: u64) -> Option<&Signature> {
        let remembered = (self.oldest()..self.next).contains(&sequence);
        let run = self.runs.iter().rfind(|run| remembered && run.first <= sequence)?;
        Some(&run.call)
    }

    /// Returns the last calls before number `end`, for comparison with those of others.
    pub(crate) fn before(&self, end: u64) -> Vec<PastCall> {
        let runs = self.runs.iter().filter(|run| run.first < end);
        let past = |run: &Repeat| PastCall { first: run.first.max(self.oldest()), call: run.call.clone() };
        let skipped = runs.clone().count().saturating_sub(PastCall::MAX);
        runs.skip(skipped).map(past).collect()
    }

    /// Returns the number of the first call before number `end` that differs from another rank's
    /// call with the same number, and both calls. Calls that either rank no longer remembers, or
    /// has not made yet, count as equal.
    pub(crate) fn difference(&self, past: &[PastCall], end: u64) -> Option<(u64, Signature, Signature)> {
        let ends = past.iter().skip(1).map(|next| next.first).chain([end]);
        past.iter().zip(ends).find_map(|(PastCall { first, call: theirs }, end)| {
            let mut numbers = (*first).max(self.oldest())..end.min(self.next);
            numbers.find_map(|number| {
                let ours = self.get(number).filter(|ours| *ours != theirs)?;
                Some((number, ours.clone(), theirs.clone()))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Collective, GroupId};

    fn call(count: u64) -> Signature {
        let mut call = Signature::new(GroupId::WORLD, Collective::Barrier, "a");
        call.count = count;
        call
    }

    fn push(history: &mut History, count: u64) -> u64 {
        let call = call(count);
        history.push(&call, call.fingerprint())
    }

    #[test]
    fn the_last_calls_are_found_by_number() {
        let mut history = History::default();
        assert_eq!(history.get(0), None);
        for count in 0..=200 {
            assert_eq!(push(&mut history, count), count);
        }
        assert_eq!(history.get(200), Some(&call(200)));
        assert_eq!(history.get(137), Some(&call(137)));
        assert_eq!(history.get(136), None);
        assert_eq!(history.get(201), None);
        assert_eq!(history.get(0), None);
    }

    fn history(counts: &[u64]) -> History {
        let mut history = History::default();
        for &count in counts {
            push(&mut history, count);
        }
        history
    }

    #[test]
    fn the_first_difference_of_two_histories_is_found_from_both_sides() {
        let (ours, theirs) = ([9, 1, 1, 2, 3, 3, 4], [9, 1, 1, 2, 5, 3]);
        let ((ours, end), (theirs, other_end)) = ((history(&ours), 7), (history(&theirs), 6));
        assert_eq!(theirs.difference(&ours.before(end), end), Some((4, call(5), call(3))));
        assert_eq!(ours.difference(&theirs.before(other_end), other_end), Some((4, call(3), call(5))));
        assert_eq!(ours.difference(&theirs.before(4), 4), None);
        assert_eq!(ours.difference(&ours.before(end), end), None);
        assert_eq!(
            ours.difference(&ours.before(3), u64::MAX),
            Some((3, call(2), call(1))),
            "a run that continued"
        );
        assert_eq!(History::default().difference(&ours.before(end), end), None);
    }

    #[test]
    fn histories_are_compared_as_far_as_both_reach() {
        let mut counts: Vec<u64> = (0..100).collect();
        let long = history(&counts);
        assert_eq!(long.before(100).len(), PastCall::MAX);
        assert_eq!(long.before(100).last(), Some(&PastCall { first: 99, call: call(99) }));
        counts[95] = 0;
        assert_eq!(history(&counts).difference(&long.before(100), 100), Some((95, call(0), call(95))));
        counts[91] = 0;
        let other = history(&counts).difference(&long.before(100), 100);
        assert_eq!(other, Some((95, call(0), call(95))), "calls that are not listed are not compared");
        assert_eq!(history(&[7; 500]).difference(&history(&[7; 90]).before(90), 90), None, "too old");
    }

    #[test]
    fn repeated_calls_are_found_by_number() {
        let (mut history, mut made) = (History::default(), Vec::new());
        for (run, repetitions) in [1, 2, 70, 1, 1, 63, 64, 65, 3, 200, 1].into_iter().enumerate() {
            for _ in 0..repetitions {
                let count = run as u64 % 3;
                made.push(count);
                let last = push(&mut history, count);
                for (number, &count) in made.iter().enumerate() {
                    let known = number + 64 >= made.len();
                    assert_eq!(history.get(number as u64), known.then_some(&call(count)));
                }
                assert_eq!((last, history.last()), (made.len() as u64 - 1, last));
                assert_eq!(history.get(last + 1), None);
                assert!(history.runs.len() <= 64);
            }
        }
    }
}

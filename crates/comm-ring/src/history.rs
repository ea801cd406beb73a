//! The last calls of a communicator, to compare with what other ranks say they called.

use std::collections::VecDeque;

use comm_core::Call;

/// How many calls are remembered. A peer that is further behind learns of a mismatch from its own side.
const REMEMBERED: u64 = 64;

/// The last calls, with their sequence numbers. Number 0 is that in which the members agree on their settings.
#[derive(Debug)]
pub(crate) struct History {
    /// The oldest first. Only the last ones of the first run may be remembered.
    runs: VecDeque<Run>,
    next: u64,
}

/// Calls in a row that are alike.
#[derive(Debug)]
struct Run {
    call: Call,
    fingerprint: u64,
    /// The number of the first one.
    first: u64,
}

impl Default for History {
    /// With room for as many calls as are remembered if none is like the one before.
    fn default() -> Self {
        Self { runs: VecDeque::with_capacity(REMEMBERED as usize + 1), next: 0 }
    }
}

impl History {
    /// The number of the last call; 0 also before the first.
    #[inline]
    pub(crate) const fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Remembers a call, whose fingerprint this is, and returns its number.
    #[inline]
    pub(crate) fn push(&mut self, call: &Call, fingerprint: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.runs.back().is_none_or(|run| run.fingerprint != fingerprint) {
            self.begin(Run { call: call.clone(), fingerprint, first: number });
        }
        number
    }

    fn begin(&mut self, run: Run) {
        let oldest = self.oldest();
        while self.runs.get(1).is_some_and(|second| second.first <= oldest) {
            self.runs.pop_front();
        }
        self.runs.push_back(run);
    }

    /// The number of the oldest call that is remembered.
    const fn oldest(&self) -> u64 {
        self.next.saturating_sub(REMEMBERED)
    }

    /// The call of this number, unless it is too old or yet to come.
    pub(crate) fn get(&self, sequence: u64) -> Option<&Call> {
        let remembered = (self.oldest()..self.next).contains(&sequence);
        let run = self.runs.iter().rfind(|run| remembered && run.first <= sequence)?;
        Some(&run.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Accumulate, Collective, GroupId};

    fn call(count: u64) -> Call {
        Call {
            group: GroupId::WORLD,
            collective: Collective::Barrier,
            op: None,
            dtype: None,
            accumulate: Accumulate::Native,
            count,
            root: None,
            detail: 0,
            algorithm: "a".into(),
        }
    }

    fn push(history: &mut History, count: u64) -> u64 {
        let call = call(count);
        history.push(&call, call.fingerprint())
    }

    #[test]
    fn the_last_calls_are_known_by_number() {
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

    #[test]
    fn calls_that_are_alike_are_known_by_number_too() {
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

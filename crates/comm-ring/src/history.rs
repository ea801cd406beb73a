//! The last calls of a communicator, to compare with what other ranks say they called.

use std::collections::VecDeque;

use comm_core::Call;

/// How many calls are remembered. A peer that is further behind learns of a mismatch from its own side.
const REMEMBERED: usize = 64;

/// The last calls, with their sequence numbers. Number 0 is that in which the members agree on their settings.
#[derive(Debug, Default)]
pub(crate) struct History {
    calls: VecDeque<Call>,
    next: u64,
}

impl History {
    /// The number of the last call; 0 also before the first.
    pub(crate) const fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Remembers a call and returns its number.
    pub(crate) fn push(&mut self, call: Call) -> u64 {
        if self.calls.len() == REMEMBERED {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
        self.next += 1;
        self.last()
    }

    /// The call of this number, unless it is too old or yet to come.
    pub(crate) fn get(&self, sequence: u64) -> Option<&Call> {
        let back = usize::try_from(self.last().checked_sub(sequence)?).ok()?;
        self.calls.get(self.calls.len().checked_sub(back + 1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Collective, GroupId};

    fn call(count: u64) -> Call {
        Call {
            group: GroupId::WORLD,
            collective: Collective::Barrier,
            op: None,
            dtype: None,
            count,
            root: None,
            detail: 0,
            algorithm: "a".into(),
        }
    }

    #[test]
    fn the_last_calls_are_known_by_number() {
        let mut history = History::default();
        assert_eq!(history.get(0), None);
        for count in 0..=200 {
            assert_eq!(history.push(call(count)), count);
        }
        assert_eq!(history.get(200), Some(&call(200)));
        assert_eq!(history.get(137), Some(&call(137)));
        assert_eq!(history.get(136), None);
        assert_eq!(history.get(201), None);
        assert_eq!(history.get(0), None);
    }
}

//! Time limits that do not pass while this rank is stopped.

use std::time::{Duration, Instant};

/// The longest time between two looks at reports of others.
pub(super) const TURN: Duration = Duration::from_millis(50);

/// The remaining time to wait for others. It passes only while this rank runs: if it was stopped,
/// the others may have sent everything in the meantime.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    left: Duration,
    last: Instant,
    /// The longest time between two looks.
    turn: Duration,
}

impl Patience {
    pub(super) const fn new(left: Duration, now: Instant) -> Self {
        Self { left, last: now, turn: TURN }
    }

    /// Creates a limit that passes also while this rank is stopped.
    pub(super) const fn until_deadline(left: Duration, now: Instant) -> Self {
        Self { left, last: now, turn: Duration::MAX }
    }

    /// Returns the time that is left. Between two calls, at most two turns pass.
    pub(super) fn left(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.last).min(self.turn.saturating_mul(2));
        (self.left, self.last) = (self.left.saturating_sub(passed), now);
        self.left
    }

    /// Returns the time until the next look.
    pub(super) fn turn(&self) -> Duration {
        self.left.min(self.turn)
    }

    /// Returns whether no time was left at the last call of [`left`](Self::left).
    pub(super) const fn is_over(&self) -> bool {
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_while_the_rank_runs() {
        let began = Instant::now();
        let mut patience = Patience::new(4 * TURN, began);
        assert_eq!(patience.left(began + TURN), 3 * TURN);
        assert_eq!(patience.turn(), TURN);
        // The rank was stopped for an hour.
        let woken = began + Duration::from_hours(1);
        assert_eq!(patience.left(woken), TURN);
        assert!(!patience.is_over());
        assert_eq!(patience.left(woken + TURN), Duration::ZERO);
        assert!(patience.is_over());
    }

    #[test]
    fn a_deadline_passes_also_while_the_rank_is_stopped() {
        let began = Instant::now();
        let mut patience = Patience::until_deadline(4 * TURN, began);
        assert_eq!(patience.turn(), 4 * TURN);
        assert_eq!(patience.left(began + 3 * TURN), TURN);
        assert_eq!(patience.left(began + Duration::from_hours(1)), Duration::ZERO);
    }
}

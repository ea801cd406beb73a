//! The time until the leader looks again for processes that want to join.

use std::time::Instant;

/// The share of its time, as a fraction 1/N, that a leader spends on a store that does not answer.
const SHARE: u32 = 10;

/// A pause after the leader could not reach the store. The other members wait for it meanwhile, so
/// a store that is gone must not slow down every growth.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    until: Option<Instant>,
}

impl Backoff {
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Begins a pause after an attempt that has failed.
    pub(crate) fn begin(&mut self, attempt: Instant, now: Instant) {
        self.until = now.checked_add(now.saturating_duration_since(attempt) * (SHARE - 1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tenth_of_the_time_is_spent_on_a_store_that_does_not_answer() {
        let (mut backoff, start) = (Backoff::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(backoff.is_over(start));
        backoff.begin(start, at(10));
        assert!(!backoff.is_over(at(99)) && backoff.is_over(at(100)));
        // An attempt that fails at once may be repeated at once.
        backoff.begin(at(100), at(100));
        assert!(backoff.is_over(at(100)));
    }
}

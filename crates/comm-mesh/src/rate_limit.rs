//! Limits the rate of warnings, so that a flood of connections does not flood the log.

use std::time::{Duration, Instant};

/// The most warnings per period.
const WARNINGS_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);

/// Counts warnings and decides which are logged: 20 in 10 seconds.
#[derive(Debug, Default)]
pub struct RateLimit {
    began: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl RateLimit {
    /// Returns the number of warnings suppressed since the last one that was logged, or `None` if
    /// this warning is suppressed too.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            self.began = Some(now);
            self.logged = 0;
        }
        if self.logged < WARNINGS_MAX {
            self.logged += 1;
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_warnings_are_counted_and_reported_in_the_next_period() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let logged = (0..1000).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(logged, WARNINGS_MAX as usize);
        assert_eq!(limit.admit(start + PERIOD), Some(1000 - u64::from(WARNINGS_MAX)));
        assert_eq!(limit.admit(start + PERIOD), Some(0));
    }
}

//! Keeps a flood of strangers from becoming a flood of warnings.

use std::time::{Duration, Instant};

/// The most warnings in one period.
const WARNINGS_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);

/// Counts warnings, and says which may be given.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    began: Option<Instant>,
    given: u32,
    withheld: u64,
}

impl Throttle {
    /// Whether to warn now, and how many warnings were withheld before.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            self.began = Some(now);
            self.given = 0;
        }
        if self.given < WARNINGS_MAX {
            self.given += 1;
            return Some(std::mem::take(&mut self.withheld));
        }
        self.withheld += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_later() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let given = (0..1000).filter(|_| throttle.admit(start).is_some()).count();
        assert_eq!(given, WARNINGS_MAX as usize);
        assert_eq!(throttle.admit(start + PERIOD), Some(1000 - u64::from(WARNINGS_MAX)));
        assert_eq!(throttle.admit(start + PERIOD), Some(0));
    }
}

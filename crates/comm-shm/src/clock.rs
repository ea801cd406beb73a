//! The time, roughly, for who asks often.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The kernel's coarse clock, which is read without asking the processor's counter. It moves on at every tick, a few
/// milliseconds apart.
#[derive(Debug)]
pub(crate) struct RoughClock {
    start: Instant,
    at_start: Duration,
}

impl RoughClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), at_start: coarse() }
    }

    /// The time, no more than a tick before or behind it.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.start + coarse().saturating_sub(self.at_start)
    }
}

#[inline]
fn coarse() -> Duration {
    Duration::try_from(clock_gettime(ClockId::MonotonicCoarse)).unwrap_or_default()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_pace_with_the_exact_clock() {
        let (clock, tick) = (RoughClock::new(), Duration::from_millis(12));
        for _ in 0..30 {
            let (before, rough, after) = (Instant::now(), clock.now(), Instant::now());
            assert!(rough + tick >= before && rough <= after + tick);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

//! The time, roughly, for who asks often.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The kernel's coarse clock, which is read without asking the processor's counter. It moves on at every tick, a few
/// milliseconds apart.
#[derive(Debug)]
pub(crate) struct RoughClock {
    start: Instant,
    at_start: Duration,
    /// The tick that was seen last, and its time: working that out takes longer than to read the clock.
    tick: Timespec,
    now: Instant,
}

impl RoughClock {
    pub(crate) fn new() -> Self {
        let (now, tick) = (Instant::now(), clock_gettime(ClockId::MonotonicCoarse));
        Self { start: now, at_start: since_boot(tick), tick, now }
    }

    /// The time, no more than a tick before or behind it.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        let tick = clock_gettime(ClockId::MonotonicCoarse);
        if tick != self.tick {
            self.tick = tick;
            self.now = self.start + since_boot(tick).saturating_sub(self.at_start);
        }
        self.now
    }
}

fn since_boot(tick: Timespec) -> Duration {
    Duration::try_from(tick).unwrap_or_default()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_pace_with_the_exact_clock() {
        let (mut clock, tick) = (RoughClock::new(), Duration::from_millis(12));
        for _ in 0..30 {
            let (before, rough, after) = (Instant::now(), clock.now(), Instant::now());
            assert!(rough + tick >= before && rough <= after + tick);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

//! A coarse clock, for frequent use.

use std::time::{Duration, Instant};

use comm_core::simulation;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The kernel's coarse clock, which is read without the processor's counter. It advances at every
/// tick, every few milliseconds.
#[derive(Debug)]
pub struct CoarseClock {
    start: Instant,
    at_start: Duration,
    /// The last tick and its time, cached because computing it takes longer than reading the clock.
    tick: Timespec,
    now: Instant,
}

/// Starts at the time now.
impl Default for CoarseClock {
    fn default() -> Self {
        let (now, tick) = (Instant::now(), clock_gettime(ClockId::MonotonicCoarse));
        Self { start: now, at_start: since_boot(tick), tick, now }
    }
}

impl CoarseClock {
    /// Returns the time, at most a tick early or late.
    #[inline]
    pub fn now(&mut self) -> Instant {
        if let Some(system) = simulation::simulated() {
            return system.now();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_differs_from_the_exact_one_by_at_most_a_tick() {
        let (mut clock, tick) = (CoarseClock::default(), Duration::from_millis(12));
        for _ in 0..30 {
            let (before, rough, after) = (Instant::now(), clock.now(), Instant::now());
            assert!(rough + tick >= before && rough <= after + tick);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

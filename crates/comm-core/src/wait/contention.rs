//! Detection of other threads that want the processor of a waiting thread.
//!
//! A thread that spins sees a message soonest, unless the rank that should send it is waiting for
//! this processor. The length of a wait does not tell the two cases apart: if all ranks on a
//! processor spin, one that yields waits as long as the others. But a yield does: if another thread
//! ran, more time passed than this thread used.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The number of yields up to the next measurement: the first if the last one changed the score,
/// otherwise the second.
const MEASURE_EVERY: [u32; 2] = [4, 64];
/// The largest absolute score, which bounds the number of opposite measurements that change the
/// verdict.
const SCORE_MAX: i32 = 3;
/// The shortest turn of another thread that is detected.
const TURN_MIN: Duration = Duration::from_nanos(500);

/// The results of past yields.
#[derive(Debug)]
pub(super) struct Contention {
    /// The number of yields up to and including the next measured one.
    countdown: u32,
    /// Positive if most measured yields let another thread run.
    score: i32,
}

impl Contention {
    pub(super) const fn new() -> Self {
        Self { countdown: 1, score: 0 }
    }

    /// Returns whether other threads wanted the processor in most of the last measurements.
    #[inline]
    pub(super) const fn is_likely(&self) -> bool {
        self.score > 0
    }

    /// Lets another thread run.
    pub(super) fn yield_now(&mut self, now: impl Fn() -> Instant) {
        self.countdown -= 1;
        if self.countdown > 0 {
            return super::yield_now();
        }
        let (begin, used) = (now(), thread_time());
        super::yield_now();
        self.record(now().saturating_duration_since(begin), thread_time().saturating_sub(used));
    }

    /// Records the duration of a yield, and how much of it this thread itself used.
    fn record(&mut self, took: Duration, used: Duration) {
        let others_ran = took.saturating_sub(used) > TURN_MIN;
        let score = self.score + if others_ran { 1 } else { -1 };
        self.score = score.clamp(-SCORE_MAX, SCORE_MAX);
        self.countdown = MEASURE_EVERY[usize::from(score != self.score)];
    }
}

/// Returns the processor time that this thread has used.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_is_likely_if_others_run_in_most_yields() {
        let (long, short) = (Duration::from_micros(9), Duration::from_nanos(300));
        let mut contention = Contention::new();
        assert!(!contention.is_likely());
        contention.record(long, long);
        contention.record(long, short);
        assert!(!contention.is_likely());
        (0..10).for_each(|_| contention.record(long, short));
        assert!(contention.is_likely());
        (0..SCORE_MAX).for_each(|_| contention.record(short, short));
        assert!(!contention.is_likely());
    }

    #[test]
    fn thread_time_stands_still_during_sleep() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(20));
        let asleep = thread_time() - before;
        assert!(asleep < Duration::from_millis(10), "{asleep:?}");
        let begin = Instant::now();
        while thread_time() - before < asleep + Duration::from_millis(2) {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
    }
}

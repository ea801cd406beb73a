//! Whether others want the processor that this rank waits on.
//!
//! A rank that spins sees a message soonest, unless the rank that is to send it waits for this processor. Which of the
//! two it is cannot be told from how long one waits: if all ranks of a processor spin, one that yields waits as long as
//! the others. But a call to yield tells: if somebody else ran, then more time went by than this thread used.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// One call to yield in so many is measured: the more seldom, the surer the answer.
const MEASURE_EVERY: [u32; 2] = [4, 64];
/// So many measurements that speak for others outweigh as many that do not.
const SCORE_MAX: i32 = 3;
/// Less time than this does nobody run for.
const TURN_MIN: Duration = Duration::from_nanos(500);

/// What past calls to yield came to.
#[derive(Debug)]
pub(super) struct Crowd {
    /// Calls until the next one that is measured.
    countdown: u32,
    /// Above zero if others are there.
    score: i32,
}

impl Crowd {
    pub(super) const fn new() -> Self {
        Self { countdown: 1, score: 0 }
    }

    /// Whether others wanted the processor lately.
    #[inline]
    pub(super) const fn is_there(&self) -> bool {
        self.score > 0
    }

    /// Lets another thread run.
    pub(super) fn give_way(&mut self, now: impl Fn() -> Instant) {
        self.countdown -= 1;
        if self.countdown > 0 {
            return rustix::thread::sched_yield();
        }
        let (begin, used) = (now(), used());
        rustix::thread::sched_yield();
        self.learn(now().saturating_duration_since(begin), self::used().saturating_sub(used));
    }

    /// Learns how long a call took, and how much of that this thread itself.
    fn learn(&mut self, took: Duration, used: Duration) {
        let somebody = took.saturating_sub(used) > TURN_MIN;
        let score = self.score + if somebody { 1 } else { -1 };
        self.score = score.clamp(-SCORE_MAX, SCORE_MAX);
        self.countdown = MEASURE_EVERY[usize::from(score != self.score)];
    }
}

/// How long this thread has run so far.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_there_if_they_run_more_often_than_not() {
        let (long, short) = (Duration::from_micros(9), Duration::from_nanos(300));
        let mut crowd = Crowd::new();
        assert!(!crowd.is_there());
        crowd.learn(long, long);
        crowd.learn(long, short);
        assert!(!crowd.is_there());
        (0..10).for_each(|_| crowd.learn(long, short));
        assert!(crowd.is_there());
        (0..SCORE_MAX).for_each(|_| crowd.learn(short, short));
        assert!(!crowd.is_there());
    }

    #[test]
    fn the_time_of_a_thread_is_what_it_uses() {
        let before = used();
        std::thread::sleep(Duration::from_millis(20));
        let asleep = used() - before;
        assert!(asleep < Duration::from_millis(10), "{asleep:?}");
        let begin = Instant::now();
        while used() - before < asleep + Duration::from_millis(2) {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
    }
}

//! Detection of other threads that want the processor of a waiting thread.
//!
//! A thread that spins sees a message soonest, unless the rank that should send it is waiting for
//! this processor. The length of a wait does not tell the two cases apart: if all ranks on a
//! processor spin, one that yields waits as long as the others. But a yield does: if another thread
//! ran, more time passed than this thread used.
//!
//! The other thread may belong to a rank, or to a program that has nothing to do with this one and
//! computes. Such a program uses its whole time slice, a thousand times the duration of a small
//! call. So after a turn of that length, a thread does not yield if its transport knows that all
//! ranks run on other processors. A thread that communicates in the background always yields: the
//! other thread may compute what is communicated next.

use std::cell::Cell;
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

/// The shortest turn that may be the time slice of a program which does not wait for ranks.
const SLICE_MIN: Duration = Duration::from_micros(100);
/// The number of waits for which it is assumed that peers share the processor, once they did.
const SHARED_WAITS: u32 = 16;

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that communicates while others of its rank compute.
pub(crate) fn run_in_background() {
    IS_BACKGROUND.set(true);
}

/// Returns whether this thread communicates while others of its rank compute.
pub(super) fn is_in_background() -> bool {
    IS_BACKGROUND.get()
}

/// The threads that want the processor of a waiting thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rivals {
    /// Probably none.
    None,
    /// Ranks, or other threads of this rank.
    Own,
    /// Threads of unrelated programs.
    Foreign,
}

/// The results of past yields.
#[derive(Debug)]
pub(super) struct Contention {
    /// The number of yields up to and including the next measured one.
    countdown: u32,
    /// Positive if most measured yields let another thread run.
    score: i32,
    /// Whether another thread used a time slice in the last measured yield.
    gave_slice: bool,
    /// Whether peers were elsewhere when they were last looked for.
    peers_are_elsewhere: bool,
    /// The number of waits before peers are looked for again.
    waits: u32,
}

/// A yield that is being measured: the time, and the processor time of the thread at its start.
#[derive(Debug)]
pub(super) struct Measurement {
    begin: Instant,
    used: Duration,
}

impl Contention {
    pub(super) const fn new() -> Self {
        Self { countdown: 1, score: 0, gave_slice: false, peers_are_elsewhere: false, waits: 0 }
    }

    /// Returns which threads wanted the processor in most of the last measurements.
    #[inline]
    pub(super) fn rivals(&mut self, peers_run_elsewhere: impl FnOnce() -> bool) -> Rivals {
        if self.is_likely() { self.likely_rivals(peers_run_elsewhere) } else { Rivals::None }
    }

    /// Returns whether other threads wanted the processor in most of the last measurements.
    #[inline]
    pub(super) const fn is_likely(&self) -> bool {
        self.score > 0
    }

    fn likely_rivals(&mut self, peers_run_elsewhere: impl FnOnce() -> bool) -> Rivals {
        if !self.gave_slice || is_in_background() {
            return Rivals::Own;
        }
        if self.waits == 0 {
            self.peers_are_elsewhere = peers_run_elsewhere();
            self.waits = if self.peers_are_elsewhere { 1 } else { SHARED_WAITS };
        }
        if self.peers_are_elsewhere { Rivals::Foreign } else { Rivals::Own }
    }

    /// Counts a wait that has ended.
    #[inline]
    pub(super) const fn end_wait(&mut self) {
        self.waits = self.waits.saturating_sub(1);
    }

    /// Measures the next yield, whenever the last one was measured.
    pub(super) const fn measure_next(&mut self) {
        self.countdown = 1;
    }

    /// Begins a yield, and occasionally its measurement.
    pub(super) fn begin_yield(&mut self, now: impl FnOnce() -> Instant) -> Option<Measurement> {
        self.countdown = self.countdown.saturating_sub(1);
        (self.countdown == 0).then(|| Measurement { begin: now(), used: thread_time() })
    }

    /// Ends the measurement of a yield.
    pub(super) fn end_yield(&mut self, Measurement { begin, used }: Measurement, now: Instant) {
        self.record(now.saturating_duration_since(begin), thread_time().saturating_sub(used));
    }

    /// Records the duration of a yield, and the part of it that this thread itself used.
    fn record(&mut self, took: Duration, used: Duration) {
        let turn = took.saturating_sub(used);
        self.gave_slice = turn >= SLICE_MIN;
        let score = self.score + if turn > TURN_MIN { 1 } else { -1 };
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
        let is_likely = |contention: &mut Contention| contention.rivals(|| false) != Rivals::None;
        assert!(!is_likely(&mut contention));
        contention.record(long, long);
        contention.record(long, short);
        assert!(!is_likely(&mut contention));
        (0..10).for_each(|_| contention.record(long, short));
        assert!(is_likely(&mut contention));
        (0..SCORE_MAX).for_each(|_| contention.record(short, short));
        assert!(!is_likely(&mut contention));
    }

    /// Returns the results of yields that let another thread run.
    fn contended() -> Contention {
        let mut contention = Contention::new();
        contention.record(Duration::from_millis(1), Duration::ZERO);
        contention
    }

    #[test]
    fn rivals_are_foreign_while_all_peers_run_elsewhere() {
        let mut contention = contended();
        assert_eq!(contention.rivals(|| true), Rivals::Foreign);
        assert_eq!(contention.rivals(|| unreachable!()), Rivals::Foreign, "once per wait");
        contention.end_wait();
        assert_eq!(contention.rivals(|| false), Rivals::Own);
        for _ in 0..SHARED_WAITS {
            assert_eq!(contention.rivals(|| unreachable!()), Rivals::Own);
            contention.end_wait();
        }
        assert_eq!(contention.rivals(|| true), Rivals::Foreign);
    }

    #[test]
    fn short_turns_are_those_of_ranks() {
        let mut contention = Contention::new();
        contention.record(SLICE_MIN, Duration::from_nanos(300));
        assert_eq!(contention.rivals(|| unreachable!()), Rivals::Own);
        contention.record(SLICE_MIN, Duration::ZERO);
        assert_eq!(contention.rivals(|| true), Rivals::Foreign);
    }

    #[test]
    fn a_background_thread_yields_to_threads_of_its_rank() {
        let in_background = || {
            run_in_background();
            contended().rivals(|| true)
        };
        assert_eq!(std::thread::spawn(in_background).join().unwrap(), Rivals::Own);
        assert_eq!(contended().rivals(|| true), Rivals::Foreign);
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

//! When things happened in a step. The one file of this crate that knows a clock.

use std::time::{Duration, Instant};

/// Where instants come from: `Instant::now`, or a test's own time.
pub type Clock = fn() -> Instant;

/// The instants of one step on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// The step began.
    pub began: Instant,
    /// `finish` was called: backward had ended.
    pub backward_ended: Instant,
    /// The last bucket had come back.
    pub finished: Instant,
    /// The buckets, in the order in which they were sent.
    pub buckets: Vec<BucketTimes>,
}

/// The life of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketTimes {
    /// Its size.
    pub bytes: usize,
    /// Its last gradient became ready; the end of backward if some never did.
    pub filled: Instant,
    /// It was handed to the communication thread, as soon as all buckets before it had been.
    pub launched: Instant,
    /// Its collective began.
    pub started: Instant,
    /// Its collective ended.
    pub completed: Instant,
}

impl BucketTimes {
    /// A bucket of so many bytes that is filled, sent and back at this instant. Its fields can be set.
    #[must_use]
    pub const fn new(bytes: usize, filled: Instant) -> Self {
        Self { bytes, filled, launched: filled, started: filled, completed: filled }
    }
}

impl Timeline {
    /// A step without buckets that begins and ends at this instant. Its fields can be set, as a test of a tracer does.
    #[must_use]
    pub const fn new(began: Instant) -> Self {
        Self { began, backward_ended: began, finished: began, buckets: Vec::new() }
    }

    /// How many buckets were in flight before backward ended: the overlap that buckets are for.
    #[must_use]
    pub fn overlapped(&self) -> usize {
        self.buckets.iter().filter(|bucket| bucket.started < self.backward_ended).count()
    }

    /// How long the rank had nothing to do but wait for gradients.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.finished.saturating_duration_since(self.backward_ended)
    }

    /// How long collectives ran, overlapped or not.
    #[must_use]
    pub fn communicating(&self) -> Duration {
        self.buckets.iter().map(|bucket| bucket.completed.saturating_duration_since(bucket.started)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_what_began_before_backward_ended() {
        let zero = Instant::now();
        let at = |millis| zero + Duration::from_millis(millis);
        let bucket = |started, completed| BucketTimes {
            bytes: 8,
            filled: at(1),
            launched: at(1),
            started: at(started),
            completed: at(completed),
        };
        let buckets = vec![bucket(2, 5), bucket(5, 12), bucket(12, 14)];
        let timeline = Timeline { began: at(0), backward_ended: at(10), finished: at(15), buckets };
        assert_eq!(timeline.overlapped(), 2);
        assert_eq!(timeline.exposed(), Duration::from_millis(5));
        assert_eq!(timeline.communicating(), Duration::from_millis(12));
    }
}

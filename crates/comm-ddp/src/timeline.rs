//! The times of the events of a step. No other file of this crate uses a clock.

use std::time::{Duration, Instant};

/// A source of instants: `Instant::now`, or the virtual time of a test.
pub type Clock = fn() -> Instant;

/// The instants of one step on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// The start of the step.
    pub began: Instant,
    /// The call of `finish`, when backward had ended.
    pub backward_ended: Instant,
    /// The completion of the last bucket.
    pub finished: Instant,
    /// The buckets, in the order in which they were sent.
    pub buckets: Vec<BucketTimes>,
}

/// The times of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketTimes {
    /// Its size.
    pub bytes: usize,
    /// The time at which its last gradient became ready; the end of backward if some never did.
    pub filled: Instant,
    /// The time at which it was passed to the communication thread, after all buckets before it.
    pub launched: Instant,
    /// The start of its collective.
    pub started: Instant,
    /// The end of its collective.
    pub completed: Instant,
}

impl BucketTimes {
    /// Creates the times of a bucket of `bytes` bytes, all equal to `filled`.
    #[must_use]
    pub const fn new(bytes: usize, filled: Instant) -> Self {
        Self { bytes, filled, launched: filled, started: filled, completed: filled }
    }
}

impl Timeline {
    /// Creates the times of a step without buckets that begins and ends at `began`. Its fields can
    /// be set.
    #[must_use]
    pub const fn new(began: Instant) -> Self {
        Self { began, backward_ended: began, finished: began, buckets: Vec::new() }
    }

    /// Returns the number of buckets whose collective overlapped with backward.
    #[must_use]
    pub fn overlapped(&self) -> usize {
        self.buckets.iter().filter(|bucket| bucket.started < self.backward_ended).count()
    }

    /// Returns the time from the end of backward to the end of the step: communication that did
    /// not overlap.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.finished.saturating_duration_since(self.backward_ended)
    }

    /// Returns the total time of the collectives, overlapped or not.
    #[must_use]
    pub fn communicating(&self) -> Duration {
        self.buckets.iter().map(|bucket| bucket.completed.saturating_duration_since(bucket.started)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_counts_collectives_that_began_before_backward_ended() {
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

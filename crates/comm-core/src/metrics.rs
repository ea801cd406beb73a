//! Counters of the calls of a communicator.

use std::borrow::Cow;
use std::time::Duration;

use crate::{Collective, Group};

/// The calls of a communicator on this rank since it was created, counted.
///
/// Counters only grow, so that the difference of two snapshots describes the time between them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// The group, as seen by this member.
    pub group: Group,
    /// The members' ranks in the world, in the order of their ranks in the group.
    pub members: Vec<usize>,
    /// The completed calls, one entry per collective and algorithm, in the order of their first
    /// use.
    pub calls: Vec<CallMetrics>,
    /// The number of failures: 1 after the fatal error of the communicator, otherwise 0.
    pub failures: u64,
    /// The time that calls waited for each member, by rank in the group, in waits that were long
    /// enough to sleep. A wait for several members counts for each in equal parts. In most
    /// algorithms a rank waits only for a few others, which may themselves wait for a late one.
    pub waited_for: Vec<Duration>,
}

impl Metrics {
    /// Creates the metrics of a communicator without calls.
    #[must_use]
    pub fn new(group: Group, members: Vec<usize>) -> Self {
        let waited_for = vec![Duration::ZERO; group.size()];
        Self { group, members, calls: Vec::new(), failures: 0, waited_for }
    }

    /// Returns the rank in the world.
    #[must_use]
    pub fn world_rank(&self) -> usize {
        self.members.get(self.group.rank()).copied().unwrap_or_else(|| self.group.rank())
    }
}

/// The completed calls of a collective with an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallMetrics {
    /// The collective.
    pub collective: Collective,
    /// The name of the algorithm.
    pub algorithm: Cow<'static, str>,
    /// The number of calls.
    pub calls: u64,
    /// The sum of [`Signature::bytes`](crate::Signature::bytes).
    pub bytes: u64,
    /// The total time in these calls.
    pub time: Duration,
    /// The durations of the calls.
    pub durations: DurationHistogram,
}

impl CallMetrics {
    /// Creates the metrics of no calls.
    #[must_use]
    pub fn new(collective: Collective, algorithm: impl Into<Cow<'static, str>>) -> Self {
        let (time, durations) = (Duration::ZERO, DurationHistogram::default());
        Self { collective, algorithm: algorithm.into(), calls: 0, bytes: 0, time, durations }
    }

    /// Returns the algorithm bandwidth in bytes per second: the bytes divided by the time. 0
    /// without calls.
    #[must_use]
    pub fn algorithm_bandwidth(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.bytes as f64 / self.time.as_secs_f64() }
    }

    /// Returns the bus bandwidth in bytes per second in a group of this many ranks: the algorithm
    /// bandwidth times [`Collective::bus_factor`].
    #[must_use]
    pub fn bus_bandwidth(&self, ranks: usize) -> f64 {
        self.algorithm_bandwidth() * self.collective.bus_factor(ranks)
    }
}

/// The numbers of calls by duration, in buckets whose bounds are powers of two nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    counts: [u64; Self::BUCKETS],
}

impl DurationHistogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 28;
    /// The binary logarithm of the bound of the first bucket in nanoseconds.
    const FIRST_LOG2: u32 = 10;

    /// Creates a histogram with this many calls in each bucket.
    #[must_use]
    pub const fn new(counts: [u64; Self::BUCKETS]) -> Self {
        Self { counts }
    }

    /// Returns the number of calls in each bucket.
    #[must_use]
    pub const fn counts(&self) -> &[u64; Self::BUCKETS] {
        &self.counts
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the largest duration that the bucket of this index counts: 2^10 ns (about a
    /// microsecond) for the first, then twice that of the previous one. `None` for the last
    /// bucket, which counts all longer durations (more than 68 seconds).
    #[must_use]
    pub const fn bound(bucket: usize) -> Option<Duration> {
        if bucket + 1 < Self::BUCKETS {
            Some(Duration::from_nanos(1 << (Self::FIRST_LOG2 + bucket as u32)))
        } else {
            None
        }
    }

    /// Returns the index of the bucket that counts a duration in nanoseconds.
    #[inline]
    #[must_use]
    pub const fn bucket(nanos: u64) -> usize {
        // The number of bits of nanos - 1 is the logarithm of the next power of two.
        let log2 = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let bucket = log2.saturating_sub(Self::FIRST_LOG2) as usize;
        if bucket < Self::BUCKETS { bucket } else { Self::BUCKETS - 1 }
    }

    /// Returns the bound of the bucket that contains this share (0 to 1) of the calls, the shortest
    /// first. `None` without calls, and for durations in the last bucket.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.total() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Self::bound(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_durations_up_to_its_bound() {
        for bucket in 0..DurationHistogram::BUCKETS - 1 {
            let bound = DurationHistogram::bound(bucket).unwrap().as_nanos() as u64;
            assert_eq!(DurationHistogram::bucket(bound), bucket);
            assert_eq!(DurationHistogram::bucket(bound + 1), bucket + 1);
        }
        assert_eq!((DurationHistogram::bucket(0), DurationHistogram::bucket(1)), (0, 0));
        assert_eq!(DurationHistogram::bucket(u64::MAX), DurationHistogram::BUCKETS - 1);
        assert_eq!(DurationHistogram::bound(0), Some(Duration::from_nanos(1024)));
        assert_eq!(DurationHistogram::bound(DurationHistogram::BUCKETS - 1), None);
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        assert_eq!(DurationHistogram::default().quantile(0.5), None);
        let mut counts = [0; DurationHistogram::BUCKETS];
        (counts[0], counts[3], counts[27]) = (98, 1, 1);
        let histogram = DurationHistogram::new(counts);
        assert_eq!(histogram.total(), 100);
        assert_eq!(histogram.quantile(0.0), DurationHistogram::bound(0));
        assert_eq!(histogram.quantile(0.98), DurationHistogram::bound(0));
        assert_eq!(histogram.quantile(0.99), DurationHistogram::bound(3));
        assert_eq!(histogram.quantile(1.0), None);
    }

    #[test]
    fn bandwidth_is_bytes_by_time() {
        let mut calls = CallMetrics::new(Collective::AllReduce, "ring");
        assert_eq!(calls.bus_bandwidth(4), 0.0);
        (calls.bytes, calls.time) = (4_000, Duration::from_millis(2));
        assert_eq!(calls.algorithm_bandwidth(), 2e6);
        assert_eq!(calls.bus_bandwidth(4), 3e6);
    }
}

//! Counters of completed calls, which other threads read.
//!
//! One thread at a time makes calls. It adds with a load and a store instead of an atomic addition,
//! which takes several times as long, and takes a lock only if it has slept.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comm_core::{CallMetrics, Collective, DurationHistogram, Signature};

use crate::peer_table::PeerTable;

/// The calls of a group with the same collective and algorithm.
#[derive(Debug)]
struct Series {
    collective: Collective,
    algorithm: Cow<'static, str>,
    bytes: AtomicU64,
    nanos: AtomicU64,
    durations: [AtomicU64; DurationHistogram::BUCKETS],
}

/// All counters of a group.
#[derive(Debug)]
pub(super) struct Counters {
    members: usize,
    series: Mutex<Vec<Arc<Series>>>,
    /// The nanoseconds that calls slept for each member.
    waited_for: Mutex<PeerTable<u64>>,
}

/// The counters of the current call, for the thread that makes calls.
#[derive(Debug, Default)]
pub(super) struct CurrentSeries {
    all: Vec<(Arc<Series>, Typical)>,
    /// Recent selections, by the last bits of the fingerprint.
    recent: [Selected; RECENT],
    /// The index of the selection for the current call.
    slot: usize,
}

/// The number of members for which memory is allocated at once, so that no call of a small group
/// allocates.
const ALLOCATED_MAX: usize = 64;

/// The number of selections that are kept.
const RECENT: usize = 32;

/// The counters that were selected for calls with this fingerprint.
#[derive(Debug, Clone, Copy, Default)]
struct Selected {
    fingerprint: u64,
    /// The index in all series.
    at: usize,
    /// The bytes of each call.
    bytes: u64,
}

/// The duration in nanoseconds with which calls that are not timed are counted: that of the last
/// call of the series that was timed and did not wait. 0 before the first.
type Typical = u64;

/// Adds to a counter that only this thread changes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Series {
    fn of(call: &Signature) -> Self {
        Self {
            collective: call.collective,
            algorithm: call.algorithm.clone(),
            bytes: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            durations: [const { AtomicU64::new(0) }; DurationHistogram::BUCKETS],
        }
    }

    fn counts(&self, call: &Signature) -> bool {
        self.collective == call.collective && self.algorithm == call.algorithm
    }

    fn metrics(&self) -> CallMetrics {
        let mut metrics = CallMetrics::new(self.collective, self.algorithm.clone());
        metrics.durations =
            DurationHistogram::new(self.durations.each_ref().map(|count| count.load(Ordering::Relaxed)));
        metrics.calls = metrics.durations.total();
        metrics.bytes = self.bytes.load(Ordering::Relaxed);
        metrics.time = Duration::from_nanos(self.nanos.load(Ordering::Relaxed));
        metrics
    }
}

impl Counters {
    pub(super) fn new(members: usize) -> Self {
        let mut waited_for = PeerTable::new(members, 0);
        (0..members.min(ALLOCATED_MAX)).for_each(|member| waited_for[member] = 0);
        Self { members, series: Mutex::default(), waited_for: Mutex::new(waited_for) }
    }

    /// Returns the counters by collective and algorithm.
    pub(super) fn calls(&self) -> Vec<CallMetrics> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.iter().map(|series| series.metrics()).collect()
    }

    /// Returns the time that calls waited for each member.
    pub(super) fn waited_for(&self) -> Vec<Duration> {
        let waited_for = self.waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        (0..self.members).map(|member| Duration::from_nanos(waited_for[member])).collect()
    }

    /// Counts a wait for these members, for each in equal parts.
    pub(super) fn waited(&self, members: &[usize], nanos: u64) {
        let share = nanos / (members.len() as u64).max(1);
        let mut waited_for = self.waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        for member in members {
            if let Some(total) = waited_for.get_mut(*member) {
                *total = total.wrapping_add(share);
            }
        }
    }
}

impl CurrentSeries {
    /// Selects the counters of a call that differs from the previous one, with its fingerprint.
    #[inline]
    pub(super) fn select(&mut self, call: &Signature, fingerprint: u64, group: &Counters) {
        self.slot = fingerprint as usize % RECENT;
        // The fingerprint leaves out the lengths of calls of which each rank knows only its own.
        let is_known = call.collective.is_known_everywhere() && !self.all.is_empty();
        if self.recent[self.slot].fingerprint != fingerprint || !is_known {
            self.recent[self.slot] = self.find(call, fingerprint, group);
        }
    }

    #[inline]
    const fn current(&self) -> Selected {
        self.recent[self.slot % RECENT]
    }

    #[cold]
    fn find(&mut self, call: &Signature, fingerprint: u64, group: &Counters) -> Selected {
        let bytes = call.bytes(group.members);
        let position = self.all.iter().position(|(series, _)| series.counts(call));
        let at = position.unwrap_or_else(|| {
            let series = Arc::new(Series::of(call));
            group.series.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&series));
            self.all.push((series, 0));
            self.all.len() - 1
        });
        Selected { fingerprint, at, bytes }
    }

    /// Counts a completed call of this duration in nanoseconds, or of the typical one.
    #[inline]
    pub(super) fn complete(&mut self, nanos: Option<u64>, has_waited: bool) {
        let Selected { at, bytes, .. } = self.current();
        let Some((series, typical)) = self.all.get_mut(at) else { return };
        if let (Some(nanos), false) = (nanos, has_waited) {
            *typical = nanos;
        }
        let nanos = nanos.unwrap_or(*typical);
        add(&series.bytes, bytes);
        add(&series.nanos, nanos);
        // The index is in range, which the compiler sees.
        add(&series.durations[DurationHistogram::bucket(nanos)], 1);
    }

    /// Returns whether a typical duration is known for calls like the last one.
    #[inline]
    pub(super) fn has_typical(&self) -> bool {
        self.all.get(self.current().at).is_some_and(|(_, typical)| *typical > 0)
    }
}

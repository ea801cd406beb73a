//! The calls as other threads see them, also while a call is blocked.
//!
//! One thread at a time makes calls. It writes a slot per call with plain stores, so that a call
//! takes no lock; only a call that differs from the previous one does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comm_core::{
    CallState, Collective, Error, FlightRecord, Group, Metrics, Observe, RecordedCall, RecordedFailure,
    Signature,
};

use super::counters::Counters;

/// The last calls of a group.
#[derive(Debug)]
pub(crate) struct CallLog {
    group: Group,
    /// The members' ranks in the world, in the order of their ranks in the group. `None` if they
    /// are the same as in the group.
    members: Option<Box<[usize]>>,
    origin: Instant,
    /// The call with number n is in slot n modulo their number, which is a power of two.
    slots: Box<[Slot]>,
    /// The number of calls so far.
    calls: AtomicU64,
    /// The oldest first. The first calls of the first run may be older than those that are kept.
    runs: Mutex<VecDeque<Repeat>>,
    incomplete: Mutex<IncompleteCalls>,
    pub(super) counters: Counters,
    /// Whether the times of all calls are exact.
    pub(super) exact_times: bool,
}

/// Consecutive equal calls.
#[derive(Debug)]
pub(super) struct Repeat {
    pub(super) call: Signature,
    /// The number of the first one.
    pub(super) first: u64,
}

/// The times of a call, in nanoseconds since the origin.
#[derive(Debug)]
struct Slot {
    /// The number of the call plus 1; 0 while the slot is written.
    number: AtomicU64,
    started: AtomicU64,
    /// The time plus 1; 0 until the call has ended.
    ended: AtomicU64,
}

/// The calls that did not simply complete.
#[derive(Debug, Default)]
struct IncompleteCalls {
    /// The last call that was blocked for long.
    blocked: u64,
    /// The ranks that it waits for.
    waiting_for: Vec<usize>,
    failure: Option<RecordedFailure>,
}

/// Returns the call of this number from runs that include it.
pub(super) fn call(runs: &VecDeque<Repeat>, number: u64) -> Option<&Signature> {
    runs.iter().rfind(|run| run.first <= number).map(|run| &run.call)
}

impl Slot {
    /// Creates the slot of no call. It is not all zeros, so that its memory is written.
    const fn empty() -> Self {
        Self { number: AtomicU64::new(0), started: AtomicU64::new(u64::MAX), ended: AtomicU64::new(0) }
    }
}

impl CallLog {
    /// Creates an empty log. All of its memory is written, so that no call causes a page fault.
    pub(super) fn new(group: Group, members: Option<&[usize]>, origin: Instant, kept: usize) -> Self {
        let unused = || Repeat { call: Signature::new(group.id(), Collective::Barrier, ""), first: 0 };
        let mut runs: VecDeque<Repeat> = (0..=kept).map(|_| unused()).collect();
        runs.clear();
        let differ = |members: &&[usize]| members.iter().enumerate().any(|(rank, member)| rank != *member);
        Self {
            group,
            members: members.filter(differ).map(Into::into),
            origin,
            slots: (0..kept).map(|_| Slot::empty()).collect(),
            calls: AtomicU64::new(0),
            runs: Mutex::new(runs),
            incomplete: Mutex::default(),
            counters: Counters::new(group.size()),
            exact_times: false,
        }
    }

    /// Returns the rank in the world of a member.
    pub(crate) fn member(&self, rank: usize) -> usize {
        self.members.as_ref().map_or(rank, |members| members[rank])
    }

    /// Returns the members' ranks in the world, in the order of their ranks in the group.
    fn members(&self) -> Vec<usize> {
        (0..self.group.size()).map(|rank| self.member(rank)).collect()
    }

    /// Returns the number of calls that are kept.
    pub(super) const fn kept(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn runs(&self) -> MutexGuard<'_, VecDeque<Repeat>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incomplete(&self) -> MutexGuard<'_, IncompleteCalls> {
        self.incomplete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that differs from the previous one.
    pub(super) fn begin_run(&self, call: &Signature, number: u64) {
        let oldest = (number + 1).saturating_sub(self.kept());
        let mut runs = self.runs();
        while runs.get(1).is_some_and(|second| second.first <= oldest) {
            runs.pop_front();
        }
        runs.push_back(Repeat { call: call.clone(), first: number });
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number & (self.kept() - 1)) as usize]
    }

    /// Returns the nanoseconds since the origin.
    #[inline]
    pub(super) fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Records the start of a call. Only the thread that makes calls does this.
    #[inline]
    pub(super) fn started(&self, number: u64, nanos: u64) {
        let slot = self.slot(number);
        slot.number.store(0, Ordering::Relaxed);
        // A thread that reads a later value below also reads 0, or the new number, afterwards.
        fence(Ordering::Release);
        slot.started.store(nanos, Ordering::Relaxed);
        slot.ended.store(0, Ordering::Relaxed);
        slot.number.store(number + 1, Ordering::Release);
        self.calls.store(number + 1, Ordering::Release);
    }

    /// Records the end of the last call that started.
    #[inline]
    pub(super) fn ended(&self, number: u64, nanos: u64) {
        self.slot(number).ended.store(nanos + 1, Ordering::Relaxed);
    }

    /// Records that a call is blocked and waits for these ranks.
    pub(super) fn blocked(&self, number: u64, waiting_for: &[usize]) {
        let mut incomplete = self.incomplete();
        incomplete.blocked = number;
        incomplete.waiting_for.clear();
        incomplete.waiting_for.extend_from_slice(waiting_for);
    }

    /// Records the first fatal error.
    pub(super) fn failed(&self, number: u64, error: &Error) {
        let failure = || RecordedFailure::new(number, error.clone());
        self.incomplete().failure.get_or_insert_with(failure);
    }

    /// Returns the times of a call, unless its slot serves a later one by now.
    fn times(&self, number: u64) -> Option<(Instant, Option<Instant>)> {
        let slot = self.slot(number);
        if slot.number.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let (started, ended) = (slot.started.load(Ordering::Relaxed), slot.ended.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if slot.number.load(Ordering::Relaxed) != number + 1 {
            return None;
        }
        let time = |nanos| self.origin + Duration::from_nanos(nanos);
        Some((time(started), ended.checked_sub(1).map(time)))
    }
}

impl Observe for CallLog {
    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new(self.group, self.members());
        metrics.calls = self.counters.calls();
        metrics.failures = u64::from(self.incomplete().failure.is_some());
        metrics.waited_for = self.counters.waited_for();
        metrics
    }

    fn flight_record(&self) -> FlightRecord {
        let (runs, incomplete) = (self.runs(), self.incomplete());
        let calls = self.calls.load(Ordering::Acquire);
        let mut record = FlightRecord::new(self.group, self.members());
        record.failure.clone_from(&incomplete.failure);
        record.exact_times = self.exact_times;
        let recorded = |number| {
            let (started, ended) = self.times(number)?;
            let mut recorded = RecordedCall::new(number, call(&runs, number)?.clone(), started);
            let failed = incomplete.failure.as_ref().is_some_and(|failure| failure.sequence == number);
            recorded.state = match ended {
                _ if failed => CallState::Failed,
                Some(_) => CallState::Completed,
                None => CallState::Started,
            };
            recorded.ended = ended;
            if incomplete.blocked == number && recorded.state != CallState::Completed {
                recorded.waiting_for.clone_from(&incomplete.waiting_for);
            }
            Some(recorded)
        };
        record.calls = (calls.saturating_sub(self.kept())..calls).filter_map(recorded).collect();
        record
    }
}

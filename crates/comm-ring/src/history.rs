//! The last calls of a communicator, for comparison with other ranks.

mod counters;
mod log;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Error, Group, Signature};

use crate::RingConfig;
use crate::control::PastCall;
use counters::CurrentSeries;
pub(crate) use log::CallLog;

/// The smallest number of calls that are kept. A peer that is further behind detects a mismatch
/// itself.
const KEPT_MIN: usize = 64;
/// The largest number of calls that are kept.
const KEPT_MAX: usize = 1 << 20;

/// The last calls, with their sequence numbers, as seen by the thread that makes them. Number 0 is
/// the call in which the members agree on their settings.
#[derive(Debug)]
pub(crate) struct History {
    log: Arc<CallLog>,
    next: u64,
    /// The fingerprint of the last call.
    fingerprint: Option<u64>,
    /// The last recorded time, and the nanoseconds since the origin: a coarse clock returns the
    /// same time to many calls.
    last_time: (Instant, u64),
    series: CurrentSeries,
    /// The start of the last call by the exact clock, or its first wait, before which it has moved
    /// little. `None` if it is not timed.
    timed_since: Option<Instant>,
    /// Whether the last call had to wait for longer than a few polls.
    has_waited: bool,
}

/// One of this many short calls is timed.
const TIMED_EVERY: u64 = 32;

impl History {
    /// Creates an empty history of a group with these members, or of all ranks. Allocates for the
    /// worst case, in which no call equals the one before. Times count from `origin`.
    pub(crate) fn new(group: Group, members: Option<&[usize]>, origin: Instant, config: &RingConfig) -> Self {
        let kept = config.recorded_calls.clamp(KEPT_MIN, KEPT_MAX).next_power_of_two();
        let mut log = CallLog::new(group, members, origin, kept);
        log.exact_times = config.exact_times;
        Self {
            log: Arc::new(log),
            next: 0,
            fingerprint: None,
            last_time: (origin, 0),
            series: CurrentSeries::default(),
            timed_since: None,
            has_waited: false,
        }
    }

    /// Returns the calls as other threads see them.
    pub(crate) const fn log(&self) -> &Arc<CallLog> {
        &self.log
    }

    /// Returns the number of the last call, or 0 before the first.
    #[inline]
    pub(crate) const fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Returns whether the next call is to be timed although it is short. The numbers of these
    /// calls have no period that a program could have as well.
    #[inline]
    pub(crate) fn samples_next(&self) -> bool {
        // Multiples of the golden ratio are spread evenly.
        self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / TIMED_EVERY || !self.series.has_typical()
    }

    /// Records the start of a call with its fingerprint, and returns its number. `is_exact` states
    /// whether `now` is the time of the exact clock, from which the call is timed.
    #[inline]
    pub(crate) fn push(&mut self, call: &Signature, fingerprint: u64, now: Instant, is_exact: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        let is_new = self.fingerprint != Some(fingerprint);
        if is_new {
            self.fingerprint = Some(fingerprint);
            self.log.begin_run(call, number);
        }
        if is_new || !call.collective.is_known_everywhere() {
            self.series.select(call, fingerprint, &self.log.counters);
        }
        (self.timed_since, self.has_waited) = (is_exact.then_some(now), false);
        let nanos = self.nanos(now);
        self.log.started(number, nanos);
        number
    }

    #[inline]
    fn nanos(&mut self, now: Instant) -> u64 {
        // The coarse clock is behind the exact one: the times of a record still do not decrease.
        if now > self.last_time.0 {
            self.last_time = (now, self.log.nanos(now));
        }
        self.last_time.1
    }

    /// Records that the last call has to wait since this time.
    pub(crate) const fn wait_since(&mut self, since: Instant) {
        self.has_waited = true;
        if self.timed_since.is_none() {
            self.timed_since = Some(since);
        }
    }

    /// Returns whether the last call is timed, so that its end must be read from the exact clock.
    #[inline]
    pub(crate) const fn is_timed(&self) -> bool {
        self.timed_since.is_some()
    }

    /// Records that the last call completed.
    #[inline]
    pub(crate) fn complete(&mut self, now: Instant) {
        let nanos = self.nanos(now);
        self.log.ended(self.last(), nanos);
        let took = self.timed_since.map(|since| nanos_of(now.saturating_duration_since(since)));
        self.series.complete(took, self.has_waited);
    }

    /// Records that the last call waited for these members for this time.
    pub(crate) fn waited(&self, members: &[usize], time: Duration) {
        self.log.counters.waited(members, nanos_of(time));
    }

    /// Records that the last call is blocked and waits for these ranks.
    pub(crate) fn block(&self, waiting_for: &[usize]) {
        self.log.blocked(self.last(), waiting_for);
    }

    /// Records the error that ends the communicator, in this call or before it.
    pub(crate) fn fail(&self, sequence: u64, error: &Error, now: Instant) {
        if sequence < self.next {
            self.log.ended(sequence, self.log.nanos(now));
        }
        self.log.failed(sequence, error);
    }

    /// Returns the number of the oldest call that is kept.
    fn oldest(&self) -> u64 {
        self.next.saturating_sub(self.log.kept())
    }

    /// Returns the call of this number, unless it is too old or has not been made yet.
    pub(crate) fn get(&self, sequence: u64) -> Option<Signature> {
        let is_kept = (self.oldest()..self.next).contains(&sequence);
        if is_kept { log::call(&self.log.runs(), sequence).cloned() } else { None }
    }

    /// Returns the last calls before number `end`, for comparison with other ranks.
    pub(crate) fn before(&self, end: u64) -> Vec<PastCall> {
        let all = self.log.runs();
        let runs = all.iter().filter(|run| run.first < end);
        let skipped = runs.clone().count().saturating_sub(PastCall::MAX);
        let past =
            |run: &log::Repeat| PastCall { first: run.first.max(self.oldest()), call: run.call.clone() };
        runs.skip(skipped).map(past).collect()
    }

    /// Returns the number of the first call before number `end` that differs from another rank's
    /// call with the same number, and both calls. Calls that either rank no longer remembers, or
    /// has not made yet, count as equal.
    pub(crate) fn difference(&self, past: &[PastCall], end: u64) -> Option<(u64, Signature, Signature)> {
        let runs = self.log.runs();
        let ends = past.iter().skip(1).map(|next| next.first).chain([end]);
        past.iter().zip(ends).find_map(|(PastCall { first, call: theirs }, end)| {
            let mut numbers = (*first).max(self.oldest())..end.min(self.next);
            numbers.find_map(|number| {
                let ours = log::call(&runs, number).filter(|ours| *ours != theirs)?;
                Some((number, ours.clone(), theirs.clone()))
            })
        })
    }
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

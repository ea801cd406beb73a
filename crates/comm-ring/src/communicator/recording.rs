//! Records the calls that block or fail.

use std::time::Instant;

use comm_core::{Error, Observe};

use super::session::Session;

impl Session {
    /// Records the ranks that the current call waits for. Called when it announces that it is
    /// blocked, and when it fails.
    pub(super) fn record_wait(&self, waiting_for: &[usize]) {
        if !waiting_for.is_empty() {
            self.history.block(waiting_for);
        }
    }

    /// Notes the ranks for which the current wait sleeps, when it first does. Allocates nothing.
    pub(super) fn note_sleep(&mut self) {
        if self.slept_for.is_empty() {
            let interest = self.executor.interest();
            self.slept_for.extend_from_slice(interest.recv());
            let sends = interest.send().iter().filter(|peer| !interest.recv().contains(peer));
            self.slept_for.extend(sends);
        }
    }

    /// Records the duration of the current wait, if it slept. Must be called before the waiter
    /// learns that something moved.
    pub(super) fn end_sleep(&mut self, now: Instant) {
        if let Some(since) = self.waiter.since() {
            self.history.waited(&self.slept_for, now.saturating_duration_since(since));
        }
        self.slept_for.clear();
    }

    /// Records the error that ends the communicator in this call. Must be called before the state
    /// of the call is dropped.
    pub(super) fn record_failure(&mut self, sequence: u64, error: &Error) {
        if sequence == self.history.last() {
            self.record_wait(&self.waiting_for());
        }
        let now = if self.config.exact_times { self.data.now() } else { self.data.now_roughly() };
        self.history.fail(sequence, error, now);
    }

    /// Passes the record to the program.
    pub(super) fn report(&self) {
        if let Some(sink) = &self.config.flight_sink {
            sink.record(&self.history.log().flight_record());
        }
    }

    /// Passes the record of the communicator that is closed to the program, if it asked for that.
    pub(super) fn report_close(&self) {
        if self.config.record_on_close {
            self.report();
        }
    }
}

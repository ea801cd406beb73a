//! Records the calls that block or fail.

use comm_core::{Error, Transport};

use super::session::Session;

impl<T: Transport> Session<T> {
    /// Records the ranks that the current call waits for. Called when it announces that it is
    /// blocked, and when it fails.
    pub(super) fn record_wait(&self, waiting_for: &[usize]) {
        if !waiting_for.is_empty() {
            self.history.block(waiting_for);
        }
    }

    /// Records the error that ends the communicator in this call. Must be called before the state
    /// of the call is dropped.
    pub(super) fn record_failure(&mut self, sequence: u64, error: &Error) {
        if sequence == self.history.last() {
            self.record_wait(&self.waiting_for());
        }
        let now = self.data.now_roughly();
        self.history.fail(sequence, error, now);
    }

    /// Passes the record of the failed communicator to the program.
    pub(super) fn report_failure(&self) {
        if let Some(sink) = &self.config.flight_sink {
            sink.failed(&self.history.log().record());
        }
    }
}

//! Whether a communicator still works, and which of its calls were lost when it failed.

use std::sync::{Arc, Mutex};

use comm_core::{Error, Failure, Result};

use crate::sync::lock;

/// The state of a communicator. Its calls are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pub(crate) failure: Failure,
    /// The first call that had not ended when the communicator failed. What it and later ones wrote
    /// is nothing.
    first_lost: Mutex<Option<u64>>,
}

impl Health {
    /// Keeps a failure, in which the calls from `first_lost` on were lost, unless there was one
    /// before. Returns the cause that counts.
    pub(crate) fn fail(&self, cause: Error, first_lost: u64) -> Error {
        // Whoever asks whether a call was lost meanwhile gets the answer that goes with the cause.
        let mut lost = lock(&self.first_lost);
        if self.failure.keep(&cause) {
            *lost = Some(first_lost);
        }
        self.failure.cause().map_or(cause, Arc::unwrap_or_clone)
    }

    /// Fails if this call was lost.
    fn kept(&self, sequence: u64) -> Result<()> {
        match *lock(&self.first_lost) {
            Some(first_lost) if sequence >= first_lost => self.failure.usable(),
            _ => Ok(()),
        }
    }
}

/// The last call that wrote to a buffer, which decides whether the buffer holds a result.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    health: Arc<Health>,
    sequence: u64,
}

impl Ticket {
    pub(crate) const fn new(health: Arc<Health>, sequence: u64) -> Self {
        Self { health, sequence }
    }

    /// Fails if the call was lost. Before it has ended, that is not known yet.
    pub(crate) fn check(&self) -> Result<()> {
        self.health.kept(self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(reason: &str) -> Error {
        Error::Aborted { by: 1, reason: reason.into() }
    }

    #[test]
    fn the_first_failure_stays_and_loses_the_calls_that_had_not_ended() {
        let health = Arc::new(Health::default());
        let ticket = |sequence| Ticket::new(Arc::clone(&health), sequence);
        assert!(health.failure.usable().is_ok() && ticket(9).check().is_ok());
        assert!(health.fail(aborted("first"), 4).to_string().contains("first"));
        assert!(health.fail(aborted("second"), 1).to_string().contains("first"));
        assert!(ticket(3).check().is_ok());
        for refused in [ticket(4).check(), ticket(5).check(), health.failure.usable()] {
            let error = refused.unwrap_err();
            assert!(
                matches!(&error, Error::Poisoned(cause) if cause.to_string().contains("first")),
                "{error}"
            );
        }
    }
}

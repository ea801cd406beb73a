//! The failure of a communicator, and the calls that were lost in it.

use std::sync::{Arc, Mutex};

use comm_core::{Error, Failure, Result};

use crate::sync::lock;

/// The state of a communicator. Its calls are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Health {
    pub(crate) failure: Failure,
    /// The first call that had not ended when the communicator failed. Results from it on are lost.
    first_lost: Mutex<Option<u64>>,
}

impl Health {
    /// Records a failure in which the calls from `first_lost` on were lost, unless there was one
    /// before. Returns the first cause.
    pub(crate) fn fail(&self, cause: Error, first_lost: u64) -> Error {
        // The lock is held for both, so that other threads see the lost calls and the cause
        // together.
        let mut lost = lock(&self.first_lost);
        if self.failure.keep(&cause) {
            *lost = Some(first_lost);
        }
        self.failure.cause().map_or(cause, Arc::unwrap_or_clone)
    }

    /// Returns an error if this call was lost.
    fn kept(&self, sequence: u64) -> Result<()> {
        match *lock(&self.first_lost) {
            Some(first_lost) if sequence >= first_lost => self.failure.usable(),
            _ => Ok(()),
        }
    }
}

/// The last call that wrote to a buffer, which decides whether the buffer holds a result.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    health: Arc<Health>,
    sequence: u64,
}

impl CallRecord {
    pub(crate) const fn new(health: Arc<Health>, sequence: u64) -> Self {
        Self { health, sequence }
    }

    /// Returns an error if the call was lost. This is known once the call has ended.
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
        let call_record = |sequence| CallRecord::new(Arc::clone(&health), sequence);
        assert!(health.failure.usable().is_ok() && call_record(9).check().is_ok());
        assert!(health.fail(aborted("first"), 4).to_string().contains("first"));
        assert!(health.fail(aborted("second"), 1).to_string().contains("first"));
        assert!(call_record(3).check().is_ok());
        for refused in [call_record(4).check(), call_record(5).check(), health.failure.usable()] {
            let error = refused.unwrap_err();
            assert!(
                matches!(&error, Error::Poisoned(cause) if cause.to_string().contains("first")),
                "{error}"
            );
        }
    }
}

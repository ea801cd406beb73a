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
    /// Records a failure that lost the calls from `first_lost` on, unless the communicator has
    /// already failed. Returns the cause of the first failure.
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
    /// Calls of other communicators whose results were combined with it.
    others: Vec<Self>,
}

impl CallRecord {
    pub(crate) const fn new(health: Arc<Health>, sequence: u64) -> Self {
        Self { health, sequence, others: Vec::new() }
    }

    /// Returns an error if the call was lost. This is known once the call has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.health.kept(self.sequence)?;
        self.others.iter().try_for_each(Self::check)
    }

    /// Returns the record of a computation with the results of several calls.
    pub(crate) fn of_all(records: impl IntoIterator<Item = Self>) -> Option<Self> {
        records.into_iter().reduce(|mut all, mut record| {
            let others = std::mem::take(&mut record.others);
            for record in others.into_iter().chain([record]) {
                all.include(record);
            }
            all
        })
    }

    /// Adds a record without others. Only the last call of each communicator matters: if an earlier
    /// one was lost, so was the last one.
    fn include(&mut self, record: Self) {
        let is_same = |known: &&mut Self| Arc::ptr_eq(&known.health, &record.health);
        if Arc::ptr_eq(&self.health, &record.health) {
            self.sequence = self.sequence.max(record.sequence);
        } else if let Some(known) = self.others.iter_mut().find(is_same) {
            known.sequence = known.sequence.max(record.sequence);
        } else {
            self.others.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(reason: &str) -> Error {
        Error::Aborted { by: 1, reason: reason.into() }
    }

    #[test]
    fn a_result_of_several_calls_is_lost_with_any_of_them() {
        let [first, second, third] = [(); 3].map(|()| Arc::new(Health::default()));
        let record = |health: &Arc<Health>, sequence| CallRecord::new(Arc::clone(health), sequence);
        let pair = CallRecord::of_all([record(&first, 2), record(&second, 1)]).unwrap();
        let all =
            CallRecord::of_all([record(&second, 5), pair, record(&third, 1), record(&first, 1)]).unwrap();
        assert_eq!(all.others.len(), 2);
        third.fail(aborted("third"), 2);
        first.fail(aborted("first"), 3);
        assert!(all.check().is_ok());
        second.fail(aborted("second"), 5);
        assert!(all.check().unwrap_err().to_string().contains("second"));
        assert!(CallRecord::of_all([]).is_none());
    }

    #[test]
    fn the_first_failure_is_kept_and_fails_the_pending_calls() {
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

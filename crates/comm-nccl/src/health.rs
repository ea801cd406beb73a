//! Whether a communicator still works, and which of its calls were lost when it failed.

use std::sync::{Arc, Mutex};

use comm_core::{Error, Result};

use crate::sync::lock;

/// What became of a communicator. Its calls are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failure: Mutex<Option<Failure>>,
    observers: Mutex<Observers>,
}

/// Somebody who wants to know of a failure.
pub(crate) type Observer = Box<dyn FnOnce(&Error) + Send>;

#[derive(Default)]
enum Observers {
    #[default]
    None,
    Waiting(Vec<Observer>),
    Told(Error),
}

impl std::fmt::Debug for Observers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Waiting(_) => "Waiting",
            Self::Told(_) => "Told",
        })
    }
}

#[derive(Debug, Clone)]
struct Failure {
    cause: Arc<Error>,
    /// The first call that had not ended when the communicator failed. What it and later ones wrote is nothing.
    first_lost: u64,
}

impl Health {
    /// Refuses to go on after a failure.
    pub(crate) fn usable(&self) -> Result<()> {
        lock(&self.failure).as_ref().map_or(Ok(()), |failure| Err(failure.repeated()))
    }

    /// Keeps a failure, in which the calls from `first_lost` on were lost, unless there was one before. Returns the cause
    /// that counts.
    pub(crate) fn fail(&self, cause: Error, first_lost: u64) -> Error {
        let mut failure = lock(&self.failure);
        let kept = failure.get_or_insert_with(|| Failure { cause: Arc::new(cause), first_lost });
        (*kept.cause).clone()
    }

    /// Why the communicator failed, if it has.
    pub(crate) fn cause(&self) -> Option<Error> {
        lock(&self.failure).as_ref().map(|failure| (*failure.cause).clone())
    }

    /// Keeps somebody to be told of a failure, once; at once if they have been told.
    pub(crate) fn observe(&self, observer: Observer) {
        let mut observers = lock(&self.observers);
        match &mut *observers {
            Observers::None => *observers = Observers::Waiting(vec![observer]),
            Observers::Waiting(waiting) => waiting.push(observer),
            Observers::Told(cause) => {
                let cause = cause.clone();
                drop(observers);
                observer(&cause);
            }
        }
    }

    /// Tells all observers, with nothing locked.
    pub(crate) fn tell(&self, cause: &Error) {
        let before = std::mem::replace(&mut *lock(&self.observers), Observers::Told(cause.clone()));
        if let Observers::Waiting(waiting) = before {
            waiting.into_iter().for_each(|observer| observer(cause));
        }
    }

    /// Fails if this call was lost.
    fn kept(&self, sequence: u64) -> Result<()> {
        let failure = lock(&self.failure);
        let lost = failure.as_ref().filter(|failure| sequence >= failure.first_lost);
        lost.map_or(Ok(()), |failure| Err(failure.repeated()))
    }
}

impl Failure {
    fn repeated(&self) -> Error {
        Error::Poisoned(Arc::clone(&self.cause))
    }
}

/// What a buffer keeps of the call that wrote it last, to know whether it holds a result.
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
    fn observers_are_told_once_whether_they_come_before_or_after() {
        let health = Health::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let observe = |name: &'static str| {
            let told = Arc::clone(&told);
            health.observe(Box::new(move |cause| lock(&told).push(format!("{name}: {cause}"))));
        };
        observe("a");
        observe("b");
        health.tell(&aborted("enough"));
        observe("c");
        health.tell(&aborted("again"));
        let words = "aborted by rank 1: enough";
        assert_eq!(*lock(&told), [format!("a: {words}"), format!("b: {words}"), format!("c: {words}")]);
    }

    #[test]
    fn the_first_failure_stays_and_loses_the_calls_that_had_not_ended() {
        let health = Arc::new(Health::default());
        let ticket = |sequence| Ticket::new(Arc::clone(&health), sequence);
        assert!(health.usable().is_ok() && health.cause().is_none() && ticket(9).check().is_ok());
        assert!(health.fail(aborted("first"), 4).to_string().contains("first"));
        assert!(health.fail(aborted("second"), 1).to_string().contains("first"));
        assert!(ticket(3).check().is_ok());
        for refused in [ticket(4).check(), ticket(5).check(), health.usable()] {
            let error = refused.unwrap_err();
            assert!(
                matches!(&error, Error::Poisoned(cause) if cause.to_string().contains("first")),
                "{error}"
            );
        }
    }
}

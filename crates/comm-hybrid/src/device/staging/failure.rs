//! Why something cannot be used any more, and who is to know.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{Error, Result};

/// How long to wait for the reason of an abort.
const DIAGNOSIS: Duration = Duration::from_millis(200);

/// Somebody who is told of a failure, once.
pub(crate) type Observer = Box<dyn FnOnce(&Error) + Send>;

/// The first failure, if there was one.
#[derive(Default)]
pub(crate) struct Failure {
    state: Mutex<State>,
    failed: Condvar,
}

#[derive(Default)]
struct State {
    cause: Option<Arc<Error>>,
    observers: Vec<Observer>,
}

impl Failure {
    /// Refuses to go on after a failure.
    pub(crate) fn usable(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Poisoned(cause)))
    }

    pub(crate) fn cause(&self) -> Option<Arc<Error>> {
        self.lock().cause.clone()
    }

    /// Keeps a failure, unless there was one before, and tells the observers. Returns whether it is the first.
    pub(crate) fn keep(&self, cause: &Error) -> bool {
        let mut state = self.lock();
        if state.cause.is_some() {
            return false;
        }
        state.cause = Some(Arc::new(cause.clone()));
        let observers = std::mem::take(&mut state.observers);
        drop(state);
        self.failed.notify_all();
        observers.into_iter().for_each(|observer| observer(cause));
        true
    }

    /// The failure behind an error that is an abort, if it shows in a short time: whoever aborts tells the reason to a group before, and
    /// another rank that hears it may abort in turn, which is heard too.
    pub(crate) fn behind(&self, error: &Error) -> Option<Arc<Error>> {
        if !matches!(error, Error::Aborted { .. }) {
            return None;
        }
        let waited = self.failed.wait_timeout_while(self.lock(), DIAGNOSIS, |state| state.cause.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.cause.clone()
    }

    /// Has somebody told of a failure; at once if there was one.
    pub(crate) fn observe(&self, observer: Observer) {
        let mut state = self.lock();
        match state.cause.clone() {
            None => state.observers.push(observer),
            Some(cause) => {
                drop(state);
                observer(&cause);
            }
        }
    }

    /// What is guarded is whole whenever it is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failure").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

//! The first failure of a shared object, and its observers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Error, Result};

/// A callback that is called once with a failure.
type Observer = Box<dyn FnOnce(&Error) + Send>;

/// The first failure of an object that threads share, and the observers to notify of it.
///
/// Any thread may call any method; only [`Failure::await_cause`] blocks. Recording a failure and
/// notifying observers are separate, so that a caller can record it under a lock and notify after
/// releasing it: observers may run any code.
#[derive(Default)]
pub struct Failure {
    state: Mutex<State>,
    kept: Condvar,
}

#[derive(Default)]
struct State {
    cause: Option<Arc<Error>>,
    is_notified: bool,
    observers: Vec<Observer>,
}

impl Failure {
    /// Returns the cause of the failure, if there was one.
    #[must_use]
    pub fn cause(&self) -> Option<Arc<Error>> {
        self.lock().cause.clone()
    }

    /// Returns an error if there was a failure.
    ///
    /// # Errors
    /// [`Error::Poisoned`], with the cause.
    pub fn usable(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::Poisoned(cause)))
    }

    /// Records a failure, unless there was one before. Returns whether it is the first.
    #[must_use = "observers of the first failure must be notified"]
    pub fn keep(&self, cause: &Error) -> bool {
        let mut state = self.lock();
        let is_first = state.cause.is_none();
        if is_first {
            state.cause = Some(Arc::new(cause.clone()));
            self.kept.notify_all();
        }
        is_first
    }

    /// Notifies all observers of the recorded failure, on this thread. A failure whose observers
    /// are not notified, such as an orderly close, is visible only to callers that query it.
    pub fn notify(&self) {
        let mut state = self.lock();
        let Some(cause) = state.cause.clone() else { return };
        state.is_notified = true;
        let observers = std::mem::take(&mut state.observers);
        drop(state);
        observers.into_iter().for_each(|observer| observer(&cause));
    }

    /// Calls `observer` once with the cause: when observers are notified, or immediately if they
    /// already were.
    pub fn observe(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        let mut state = self.lock();
        match state.cause.clone().filter(|_| state.is_notified) {
            None => state.observers.push(Box::new(observer)),
            Some(cause) => {
                drop(state);
                observer(&cause);
            }
        }
    }

    /// Waits for the cause of a failure, for at most `at_most`.
    #[must_use]
    pub fn await_cause(&self, at_most: Duration) -> Option<Arc<Error>> {
        let waited = self.kept.wait_timeout_while(self.lock(), at_most, |state| state.cause.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.cause.clone()
    }

    /// Ignores poisoning: the state is consistent whenever the lock is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failure").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    fn aborted(reason: &str) -> Error {
        Error::Aborted { by: 1, reason: reason.into() }
    }

    #[test]
    fn the_first_failure_is_kept() {
        let failure = Failure::default();
        assert!(failure.cause().is_none() && failure.usable().is_ok());
        assert!(failure.keep(&aborted("first")));
        assert!(!failure.keep(&aborted("second")));
        assert_eq!(failure.cause().unwrap().to_string(), "aborted by rank 1: first");
        let refused = failure.usable().unwrap_err();
        assert!(
            matches!(&refused, Error::Poisoned(cause) if cause.to_string().contains("first")),
            "{refused}"
        );
    }

    #[test]
    fn observers_are_called_once_whether_added_before_or_after_the_failure() {
        let failure = Arc::new(Failure::default());
        let notified = Arc::new(Mutex::new(Vec::new()));
        let observe = |name: &'static str| {
            let (notified, within) = (Arc::clone(&notified), Arc::clone(&failure));
            // The observer itself queries the failure.
            failure.observe(move |cause| {
                notified.lock().unwrap().push(format!("{name}: {cause}, {}", within.usable().is_err()));
            });
        };
        observe("a");
        failure.notify();
        assert!(failure.keep(&aborted("enough")));
        observe("b");
        assert_eq!(*notified.lock().unwrap(), [""; 0], "no observer was notified yet");
        failure.notify();
        observe("c");
        failure.notify();
        let words = ["a", "b", "c"].map(|name| format!("{name}: aborted by rank 1: enough, true"));
        assert_eq!(*notified.lock().unwrap(), words);
    }

    #[test]
    fn await_cause_returns_when_a_failure_is_recorded() {
        let failure = Failure::default();
        assert!(failure.await_cause(Duration::from_millis(1)).is_none());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| failure.await_cause(Duration::from_secs(60)));
            thread::sleep(Duration::from_millis(20));
            assert!(failure.keep(&aborted("enough")));
            assert!(waiter.join().unwrap().is_some());
        });
    }
}

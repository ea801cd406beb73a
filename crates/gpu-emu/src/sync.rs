//! Locks that ignore poisoning, and a flag that threads can wait for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, ignoring poisoning: a test that panicked must not make the other tests of the
/// process panic too.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `notify`, and returns the guard.
pub(crate) fn wait_on<'a, T>(notify: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    notify.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// A point in a stream, which is reached once and stays so.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    reached: Mutex<bool>,
    notify: Condvar,
}

impl Marker {
    pub(crate) fn reach(&self) {
        *lock(&self.reached) = true;
        self.notify.notify_all();
    }

    pub(crate) fn is_reached(&self) -> bool {
        *lock(&self.reached)
    }

    pub(crate) fn wait(&self) {
        let mut reached = lock(&self.reached);
        while !*reached {
            reached = wait_on(&self.notify, reached);
        }
    }
}

//! The thread that makes progress on background operations while no other thread does.
//!
//! A thread that waits for an operation drives the engine itself, so that the bytes need not wait
//! for another thread to wake up, and two threads do not compete for a processor. The background
//! thread only looks from time to time whether there were calls, and drives if there were none. A
//! call that waits then takes over from it.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::Progress;

use super::engine::CallerBuffers;
use super::{Driver, Messenger, State, drive};

/// The time without calls after which the background thread drives. Each look costs a wake-up.
const PATIENCE: Duration = Duration::from_micros(200);

/// The state of the background thread.
#[derive(Debug, Default)]
pub(super) struct Background {
    /// Whether there is one.
    is_present: bool,
    /// Whether it drives.
    drives: bool,
    /// The number of calls that wait to drive in its place.
    claims: usize,
    /// Whether it sleeps until another thread no longer drives.
    sleeps: bool,
}

impl Background {
    /// Records that the background thread does not drive any more.
    pub(super) const fn stop_driving(&mut self) {
        self.drives = false;
    }

    /// Whether the background thread drives and a call wants to.
    pub(super) const fn is_displaced(&self) -> bool {
        self.drives && self.claims > 0
    }
}

impl State {
    /// Counts a call that could make progress.
    pub(super) const fn count_turn(&mut self) {
        self.turns += 1;
        self.posts = 0;
    }

    /// Returns whether background operations are pending and there is no background thread.
    pub(super) const fn needs_background_thread(&self) -> bool {
        !self.background.is_present && self.engine.has_background()
    }
}

impl Messenger {
    /// Makes progress until no background operation has been pending for a while.
    pub(crate) fn drive(&self) {
        let mut state = self.lock_as_caller();
        // A thread that was asked for before this one began may have nothing left to do.
        if !state.engine.has_background() {
            return;
        }
        state.background.is_present = true;
        let (mut turns, mut idle_looks) = (None, 0);
        loop {
            let is_quiet = turns.replace(state.turns) == Some(state.turns);
            idle_looks = if state.engine.has_background() { 0 } else { idle_looks + 1 };
            // A program that posts windows of messages posts the next ones before the second look.
            if idle_looks == 2 {
                break;
            }
            // In a simulation, one thread runs at a time, so none may wait for another here.
            state = if self.scheduler.is_some() || matches!(state.driver, Driver::Closed) {
                let mut none = CallerBuffers::default();
                self.drive_until(state, &mut none, |engine, _| !engine.has_background())
            } else {
                self.drive_or_wait(state, is_quiet)
            };
        }
        state.background.is_present = false;
        self.is_awaited.store(false, Ordering::Relaxed);
    }

    /// Drives if no other thread does, and otherwise waits.
    fn drive_or_wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_quiet: bool,
    ) -> MutexGuard<'a, State> {
        let has_operations = state.engine.has_background();
        let is_needed = has_operations && (is_quiet || self.is_awaited.load(Ordering::Relaxed));
        // A call that has claimed the engine may not have had time to take it.
        let is_due = is_needed && state.background.claims == 0;
        match &state.driver {
            Driver::Vacant(_) if is_due => self.drive_in_background(state),
            Driver::Occupied if has_operations && is_quiet => {
                state.background.sleeps = true;
                state = self.background.wait(state).unwrap_or_else(|poisoned| self.broken(poisoned));
                state.background.sleeps = false;
                state
            }
            Driver::Vacant(_) | Driver::Occupied | Driver::Closed => {
                let waited = self.background.wait_timeout(state, PATIENCE);
                match waited.map_err(PoisonError::into_inner) {
                    Ok((state, _)) | Err((state, _)) => state,
                }
            }
        }
    }

    /// Drives until no background operation is pending, or a call takes over.
    fn drive_in_background<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        match std::mem::replace(&mut state.driver, Driver::Occupied) {
            Driver::Vacant(transport) => {
                state.background.drives = true;
                state.posts = 0;
                let mut none = CallerBuffers::default();
                state =
                    drive::drive(self, state, transport, &mut none, &|engine, _| !engine.has_background());
                state.background.stop_driving();
            }
            other => state.driver = other,
        }
        self.notify_owners(state)
    }

    /// Wakes the background thread after an operation has been posted, if threads rely on it.
    pub(super) fn notify_posted(&self) {
        if self.is_awaited.load(Ordering::Relaxed) {
            self.background.notify_all();
        }
    }

    /// Wakes the background thread if it sleeps while another thread drives.
    pub(super) fn notify_background(&self, state: &State) {
        if state.background.sleeps {
            self.background.notify_all();
        }
    }

    /// Locks the state for a call that may wait, and takes over from the background thread.
    #[inline]
    pub(super) fn lock_to_drive(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock_as_caller();
        state.count_turn();
        if state.background.drives && self.scheduler.is_none() { self.take_over(state) } else { state }
    }

    /// Waits until the background thread no longer drives.
    #[cold]
    fn take_over<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.background.claims += 1;
        if std::mem::take(&mut state.asleep) {
            self.wake_driver();
        }
        while state.background.drives {
            state.waiting += 1;
            state = self.change.wait(state).unwrap_or_else(|poisoned| self.broken(poisoned));
            state.waiting -= 1;
        }
        state.background.claims -= 1;
        state
    }
}

impl Progress for Messenger {
    fn progress_until(&self, is_done: &dyn Fn() -> bool) {
        let mut none = CallerBuffers::default();
        drop(self.drive_until(self.lock_to_drive(), &mut none, |_, _| is_done()));
    }

    fn drive_now(&self) {
        // A program may ask many times whether an operation has ended.
        if !self.is_awaited.swap(true, Ordering::Relaxed) {
            let _state = self.lock_as_caller();
            self.background.notify_all();
        }
    }
}

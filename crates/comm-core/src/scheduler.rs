//! Scheduling of the threads of a rank in a simulation, which runs one thread at a time.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Runs the threads of all ranks of a simulation in turns, one at a time.
///
/// A thread that waits for another thread of its rank must do so in [`Scheduler::wait_until`],
/// because the other thread would never get a turn while this one blocks. [`Worker`](crate::Worker)
/// and [`Work`](crate::Work) do this if their communicator has a scheduler. To wait for other
/// ranks, a thread uses [`Transport::sleep`](crate::Transport::sleep).
pub trait Scheduler: Debug + Send + Sync {
    /// Adds a thread to the rank, before the thread starts. Returns its number.
    fn add_thread(&self) -> usize;

    /// Waits for the first turn of the calling thread, which has this number.
    fn begin(&self, thread: usize);

    /// Ends the turns of a thread: the calling one, or one that did not start.
    fn end(&self, thread: usize);

    /// Lets other threads run until the condition holds. The condition is checked after each turn
    /// of another thread of this rank.
    ///
    /// # Errors
    /// [`Error::Internal`](crate::Error::Internal) if it never will, because all threads are
    /// waiting.
    fn wait_until(&self, condition: &mut dyn FnMut() -> bool) -> Result<()>;
}

/// A scheduler, shared by its threads.
pub(crate) type SharedScheduler = Arc<dyn Scheduler>;

/// The turns of a thread, which end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Turns {
    scheduler: SharedScheduler,
    thread: usize,
    ended: Arc<AtomicBool>,
}

impl Turns {
    /// Adds a thread that the calling thread is about to start.
    pub(crate) fn new(scheduler: SharedScheduler) -> Self {
        let thread = scheduler.add_thread();
        Self { scheduler, thread, ended: Arc::default() }
    }

    /// Returns a handle with which a thread can wait for the end of the turns.
    pub(crate) fn end(&self) -> EndOfTurns {
        EndOfTurns { scheduler: Arc::clone(&self.scheduler), ended: Arc::clone(&self.ended) }
    }

    /// Waits for the first turn of the calling thread.
    pub(crate) fn begin(&self) {
        self.scheduler.begin(self.thread);
    }

    /// Lets other threads run until `poll` returns a value, and returns it.
    pub(crate) fn wait_for<T>(&self, poll: impl Fn() -> Option<T>) -> Result<T> {
        let mut value = None;
        self.scheduler.wait_until(&mut || {
            value = poll();
            value.is_some()
        })?;
        value.ok_or_else(|| Error::Internal("a thread was woken for no reason".into()))
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.scheduler.end(self.thread);
    }
}

/// A handle to wait for the end of the turns of a thread.
#[derive(Debug)]
pub(crate) struct EndOfTurns {
    scheduler: SharedScheduler,
    ended: Arc<AtomicBool>,
}

impl EndOfTurns {
    /// Lets other threads run until the thread has ended. Returns early in a deadlock, because the
    /// thread gets that error too.
    pub(crate) fn wait(&self) {
        let _ = self.scheduler.wait_until(&mut || self.ended.load(Ordering::Acquire));
    }

    /// Returns the scheduler.
    pub(crate) fn scheduler(&self) -> SharedScheduler {
        Arc::clone(&self.scheduler)
    }
}

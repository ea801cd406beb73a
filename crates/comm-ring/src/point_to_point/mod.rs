//! Messages between two ranks over one channel that all calling threads share.
//!
//! One thread at a time holds the transport and *drives*: it moves the bytes of all threads, and
//! sleeps when nothing moves. The others post operations to the engine and wait. When the driver's
//! own call has ended, another thread takes over. The driver accesses only the buffers of its own
//! call: the messages of waiting callers are copied, so that no thread uses memory that it has not
//! borrowed.

mod background;
mod calls;
mod drive;
mod engine;
mod frame;
mod matching;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use comm_core::{Error, Loss, Notify, Process, Result, Scheduler, Transport, Waiter};

use crate::RingConfig;
use background::Background;
use engine::{CallerBuffers, ProgressEngine};

/// Replaces an error with its cause, if that is known elsewhere.
type Explain = dyn Fn(Error) -> Error + Send + Sync;

/// Sends and receives messages over one channel, for any number of threads.
pub(crate) struct Messenger {
    state: Mutex<State>,
    /// Signalled when an operation has ended, or when no thread drives.
    change: Condvar,
    /// Signalled when the thread in [`Messenger::drive`] is to look around.
    background: Condvar,
    /// Whether a thread waits for a background operation without making progress itself.
    is_awaited: AtomicBool,
    notify: OnceLock<Notify>,
    /// Returns an error of a background operation with its cause.
    explain: OnceLock<Box<Explain>>,
    /// The number of threads that are about to take the lock.
    callers: AtomicUsize,
    /// The process that owns the streams.
    process: Process,
    /// The scheduler of the threads of a simulated rank.
    scheduler: Option<Arc<dyn Scheduler>>,
}

struct State {
    engine: ProgressEngine,
    driver: Driver,
    waiter: Waiter,
    /// Whether the driving thread sleeps and must be woken to notice new operations.
    asleep: bool,
    /// The number of threads that wait for a change.
    waiting: usize,
    /// The number of calls that could make progress, for the background thread.
    turns: u64,
    /// The number of sends that have begun since the last of them.
    posts: u32,
    background: Background,
}

/// The state of the driver.
enum Driver {
    /// No thread drives, so any thread may start to.
    Vacant(Box<dyn Transport>),
    /// Another thread drives and has the transport.
    Occupied,
    /// All operations have ended.
    Closed,
}

impl Messenger {
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        config: &RingConfig,
        scheduler: Option<Arc<dyn Scheduler>>,
    ) -> Self {
        let state = State {
            engine: ProgressEngine::new(transport.group(), config),
            waiter: transport.waiter(config.yield_max),
            driver: Driver::Vacant(transport),
            asleep: false,
            waiting: 0,
            turns: 0,
            posts: 0,
            background: Background::default(),
        };
        Self {
            state: Mutex::new(state),
            change: Condvar::new(),
            background: Condvar::new(),
            is_awaited: AtomicBool::new(false),
            notify: OnceLock::new(),
            explain: OnceLock::new(),
            callers: AtomicUsize::new(0),
            process: Process::current(),
            scheduler,
        }
    }

    /// Sets the function that finds the causes of errors of background operations. Only the first
    /// call counts.
    pub(crate) fn explain_losses_by(&self, explain: impl Fn(Error) -> Error + Send + Sync + 'static) {
        let _ = self.explain.set(Box::new(explain));
    }

    /// Returns the first rank whose host, as messages have shown, does not answer.
    pub(crate) fn lost_host(&self) -> Option<(usize, Loss)> {
        self.lock().engine.lost_host.clone()
    }

    /// Reports a death to all peers, before this rank leaves.
    pub(crate) fn report_death(&self, rank: usize, loss: &Loss) {
        self.lock().engine.report_death(rank, loss);
    }

    /// Ends all operations, here and on every other rank.
    pub(crate) fn abort(&self, cause: Error) {
        let mut state = self.lock_as_caller();
        state.engine.end_all(cause);
        self.hand_over(state);
    }

    /// Locks the state for a thread that makes a call. The driver yields the lock to it between two
    /// passes.
    #[inline]
    fn lock_as_caller(&self) -> MutexGuard<'_, State> {
        // To count the callers would double the atomic operations of one that need not wait.
        if self.scheduler.is_none()
            && let Ok(state) = self.state.try_lock()
        {
            return state;
        }
        self.callers.fetch_add(1, Ordering::Relaxed);
        let state = self.lock();
        self.callers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Locks the state. If a thread panicked while it held the lock, all operations end.
    fn lock(&self) -> MutexGuard<'_, State> {
        if let Some(scheduler) = &self.scheduler {
            // One thread runs at a time, and the one that holds the lock may not be this one. An
            // error means that no thread can go on.
            let is_free = || !matches!(self.state.try_lock(), Err(TryLockError::WouldBlock));
            drop(scheduler.wait_until(&mut { is_free }));
        }
        self.state.lock().unwrap_or_else(|poisoned| self.broken(poisoned))
    }

    fn broken<'a>(&self, poisoned: PoisonError<MutexGuard<'a, State>>) -> MutexGuard<'a, State> {
        let mut state = poisoned.into_inner();
        state.engine.end_all(Error::Internal("an earlier call panicked".into()));
        state
    }

    /// Releases the state after an operation has begun or ended: wakes the driver, or lets a
    /// waiting thread drive if there is none.
    fn hand_over<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let State { engine, driver, asleep, .. } = &mut *state;
        if let Driver::Occupied = driver {
            if std::mem::take(asleep) {
                self.wake_driver();
            }
        } else {
            let is_over = engine.poison_cause().is_some();
            if is_over && let Driver::Vacant(transport) = std::mem::replace(driver, Driver::Closed) {
                drive::close(engine, transport);
            }
            state = self.notify_owners(state);
        }
        self.notify(&state);
    }

    /// Returns the descriptor that wakes the driving thread. It exists once a thread has slept, so
    /// a group without messages needs none.
    fn wakeup(&self) -> Result<&Notify> {
        match self.notify.get() {
            Some(notify) => Ok(notify),
            None => {
                let notify = Notify::new()?;
                Ok(self.notify.get_or_init(|| notify))
            }
        }
    }

    /// Wakes the driving thread, which sleeps.
    fn wake_driver(&self) {
        self.notify.get().into_iter().for_each(Notify::notify);
    }

    /// Wakes waiting threads. Costs no system call if there are none.
    fn notify(&self, state: &State) {
        if state.waiting > 0 {
            self.change.notify_all();
        }
    }

    /// Notifies the owners of ended background operations, without holding the lock, and then the
    /// threads that make progress until one of these has ended.
    fn notify_owners<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut finished = state.engine.take_finished();
        if finished.is_empty() {
            return state;
        }
        drop(state);
        let explain = |error| match self.explain.get() {
            Some(explain) => explain(error),
            None => error,
        };
        finished.drain(..).for_each(|operation| operation.notify_owner(explain));
        let mut state = self.lock();
        state.engine.reuse_finished(finished);
        if std::mem::take(&mut state.asleep) {
            self.wake_driver();
        }
        self.notify(&state);
        state
    }

    /// Drives, or waits while another thread does, until `enough` returns true.
    fn drive_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        caller: &mut CallerBuffers<'_>,
        enough: impl Fn(&mut ProgressEngine, &mut CallerBuffers<'_>) -> bool,
    ) -> MutexGuard<'a, State> {
        let mut is_known = false;
        while !enough(&mut state.engine, caller) {
            match std::mem::replace(&mut state.driver, Driver::Occupied) {
                Driver::Vacant(transport) => {
                    if let Some((request, buffer)) = &mut caller.recv {
                        state.engine.move_to_caller(*request, buffer);
                    }
                    state = drive::drive(self, state, transport, caller, &enough);
                }
                Driver::Occupied => {
                    if !std::mem::replace(&mut is_known, true) && std::mem::take(&mut state.asleep) {
                        self.wake_driver();
                    }
                    state.waiting += 1;
                    state = self.change.wait(state).unwrap_or_else(|poisoned| self.broken(poisoned));
                    state.waiting -= 1;
                }
                Driver::Closed => {
                    // Operations that begin from now on end immediately, so this is not reached
                    // twice.
                    state.driver = Driver::Closed;
                    state.engine.end_all(Error::Internal("messages have ended without a cause".into()));
                    return state;
                }
            }
        }
        // The driver notifies the owners itself, once the transport no longer reads their memory.
        if matches!(state.driver, Driver::Occupied) { state } else { self.notify_owners(state) }
    }
}

impl State {
    /// Returns whether a caller that begins now will drive, so that its memory need not be copied.
    const fn is_vacant(&self) -> bool {
        matches!(self.driver, Driver::Vacant(_))
    }
}

impl Drop for Messenger {
    /// Announces an orderly exit to the other ranks, except in a forked child, whose parent remains
    /// the rank.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let State { engine, driver, .. } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Driver::Vacant(transport) = driver {
            if engine.poison_cause().is_none() {
                engine.queue_goodbye();
            }
            drive::linger(engine, &mut **transport);
        }
    }
}

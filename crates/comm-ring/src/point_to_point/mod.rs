//! Messages between two ranks: how the threads that make calls share one channel.
//!
//! One of them at a time has the transport and *drives*: it moves everybody's bytes, and sleeps when nothing moves. The
//! others leave what they want in the engine and wait to be told. When the driver's own call has ended it lets another
//! one drive. Its own memory is the only one of a caller that is touched; a caller that merely waits has its message
//! copied, so that no memory is used by a thread that did not borrow it.

mod calls;
mod drive;
mod engine;
mod frame;
mod matching;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use comm_core::{Error, Loss, Notify, Process, Result, Transport};

use crate::RingConfig;
use crate::wait::Waiter;
use engine::{Engine, Mine};

/// Sends and receives messages over one channel, for any number of threads.
pub(crate) struct Messenger<T: Transport> {
    state: Mutex<State<T>>,
    /// Something ended, or nobody drives.
    change: Condvar,
    notify: Notify,
    /// How many threads are about to take the lock.
    callers: AtomicUsize,
    /// The process whose streams these are.
    process: Process,
}

struct State<T> {
    engine: Engine,
    seat: Seat<T>,
    waiter: Waiter,
    /// Whether the thread that drives must be woken to see what others want.
    asleep: bool,
    /// How many threads wait for a change.
    waiting: usize,
}

/// Who drives.
enum Seat<T> {
    /// Nobody: whoever comes may.
    Free(T),
    /// Another thread, which has the transport.
    Taken,
    /// Nobody ever again.
    Closed,
}

impl<T: Transport> Messenger<T> {
    pub(crate) fn new(transport: T, config: &RingConfig) -> Result<Self> {
        let state = State {
            engine: Engine::new(transport.group(), config),
            seat: Seat::Free(transport),
            waiter: Waiter::new(config.yield_max),
            asleep: false,
            waiting: 0,
        };
        Ok(Self {
            state: Mutex::new(state),
            change: Condvar::new(),
            notify: Notify::new()?,
            callers: AtomicUsize::new(0),
            process: Process::current(),
        })
    }

    /// Communicates until nothing is under way in the background.
    pub(crate) fn drive(&self) {
        drop(self.work(self.enter(), &mut Mine::default(), |engine, _| !engine.has_background()));
    }

    /// Tells every peer that a rank died, before this one leaves.
    pub(crate) fn report_death(&mut self, rank: usize, loss: &Loss) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).engine.report_death(rank, loss);
    }

    /// Ends everything, here and on every other rank.
    pub(crate) fn abort(&self, cause: Error) {
        let mut state = self.enter();
        state.engine.end_all(cause);
        self.let_drive(state);
    }

    /// The state for a thread that comes with something: who drives lets it in between two looks.
    fn enter(&self) -> MutexGuard<'_, State<T>> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        let state = self.lock();
        self.callers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// The state, also if a thread panicked while it had it: then nothing may be communicated any more.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| self.broken(poisoned))
    }

    fn broken<'a>(&self, poisoned: PoisonError<MutexGuard<'a, State<T>>>) -> MutexGuard<'a, State<T>> {
        let mut state = poisoned.into_inner();
        state.engine.end_all(Error::Internal("an earlier call panicked".into()));
        state
    }

    /// Lets go of the state after something was begun or ended: who drives is woken to see it, and if nobody does,
    /// whoever waits may.
    fn let_drive<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) {
        let State { engine, seat, asleep, .. } = &mut *state;
        if let Seat::Taken = seat {
            if std::mem::take(asleep) {
                self.notify.notify();
            }
        } else {
            let is_over = engine.poison_cause().is_some();
            if is_over && let Seat::Free(transport) = std::mem::replace(seat, Seat::Closed) {
                drive::close(engine, transport);
            }
            state = self.tell(state);
        }
        self.notify(&state);
    }

    /// Something ended, or nobody drives. Without listeners that costs no system call.
    fn notify(&self, state: &State<T>) {
        if state.waiting > 0 {
            self.change.notify_all();
        }
    }

    /// Tells the owners of what ended in the background, without the lock.
    fn tell<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        let finished = state.engine.take_finished();
        if finished.is_empty() {
            return state;
        }
        drop(state);
        finished.into_iter().for_each(engine::Finished::tell);
        self.lock()
    }

    /// Drives, or waits while another thread does, until it is enough.
    fn work<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<T>>,
        mine: &mut Mine<'_>,
        enough: impl Fn(&mut Engine, &mut Mine<'_>) -> bool,
    ) -> MutexGuard<'a, State<T>> {
        let mut is_known = false;
        while !enough(&mut state.engine, mine) {
            match std::mem::replace(&mut state.seat, Seat::Taken) {
                Seat::Free(transport) => {
                    if let Some((ticket, buffer)) = &mut mine.recv {
                        state.engine.hand_over(*ticket, buffer);
                    }
                    state = drive::drive(self, state, transport, mine, &enough);
                }
                Seat::Taken => {
                    if !std::mem::replace(&mut is_known, true) && std::mem::take(&mut state.asleep) {
                        self.notify.notify();
                    }
                    state.waiting += 1;
                    state = self.change.wait(state).unwrap_or_else(|poisoned| self.broken(poisoned));
                    state.waiting -= 1;
                }
                Seat::Closed => {
                    // Whatever is begun now ends at once, so this is not reached twice.
                    state.seat = Seat::Closed;
                    state.engine.end_all(Error::Internal("messages have ended without a cause".into()));
                    return state;
                }
            }
        }
        // Who drives tells the owners itself, once no transport reads their memory any more.
        if matches!(state.seat, Seat::Taken) { state } else { self.tell(state) }
    }
}

impl<T: Transport> State<T> {
    /// Whether a caller that begins now is sure to drive: then its memory need not be copied.
    const fn is_free(&self) -> bool {
        matches!(self.seat, Seat::Free(_))
    }
}

impl<T: Transport> Drop for Messenger<T> {
    /// Tells the others that this rank leaves in order, unless this is a child that was forked: the rank is its parent.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let State { engine, seat, .. } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Seat::Free(transport) = seat {
            if engine.poison_cause().is_none() {
                engine.say_goodbye();
            }
            drive::last_words(engine, transport);
        }
    }
}

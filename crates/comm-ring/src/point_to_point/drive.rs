//! What the one thread does that moves the bytes of all.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comm_core::{Armed, Error, Interest, Result, Transport};

use super::engine::{Engine, Mine};
use super::{Messenger, Seat, State};
use crate::wait::{Idle, wait_for};
use std::os::fd::AsFd;

/// How long a rank that fails or leaves tries to get its last words out.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long to sleep when nothing has a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// Closes the seat of a driver that panicked, so that the others are not left waiting for it.
struct Rescue<'a, T: Transport> {
    messenger: &'a Messenger<T>,
    is_over: bool,
}

impl<T: Transport> Drop for Rescue<'_, T> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.messenger.lock();
            state.engine.end_all(Error::Internal("the thread that communicated for all panicked".into()));
            state.seat = Seat::Closed;
            self.messenger.notify(&state);
        }
    }
}

/// Moves and waits until it is enough, or until nothing can be communicated any more. Then somebody else may.
pub(super) fn drive<'a, T: Transport>(
    messenger: &'a Messenger<T>,
    state: MutexGuard<'a, State<T>>,
    mut transport: T,
    mine: &mut Mine<'_>,
    enough: &impl Fn(&mut Engine, &mut Mine<'_>) -> bool,
) -> MutexGuard<'a, State<T>> {
    let mut rescue = Rescue { messenger, is_over: false };
    // Dropped before the rescue, which takes the lock.
    let mut state = state;
    state.waiter.forget();
    let mut interest = Interest::default();
    loop {
        let moved = state.engine.progress(&mut transport, mine, false);
        if state.engine.poison_cause().is_some() {
            // Before anybody gets memory back that the transport may still read.
            close(&mut state.engine, transport);
            state.seat = Seat::Closed;
            break;
        }
        if moved {
            state.waiter.moved(|| transport.now());
        }
        if state.engine.take_news() {
            messenger.notify(&state);
            state = messenger.tell(state);
        }
        if enough(&mut state.engine, mine) {
            state.seat = Seat::Free(transport);
            break;
        }
        if moved {
            state = let_callers_in(messenger, state);
        } else {
            state = idle(messenger, state, &mut transport, mine, &mut interest);
        }
    }
    messenger.notify(&state);
    rescue.is_over = true;
    state
}

/// A lock that is taken again at once would never be had by anybody else.
fn let_callers_in<'a, T: Transport>(
    messenger: &'a Messenger<T>,
    state: MutexGuard<'a, State<T>>,
) -> MutexGuard<'a, State<T>> {
    if messenger.callers.load(Ordering::Relaxed) == 0 {
        return state;
    }
    drop(state);
    rustix::thread::sched_yield();
    messenger.lock()
}

/// Nothing moves: spins, yields or sleeps once.
fn idle<'a, T: Transport>(
    messenger: &'a Messenger<T>,
    mut state: MutexGuard<'a, State<T>>,
    transport: &mut T,
    mine: &mut Mine<'_>,
    interest: &mut Interest,
) -> MutexGuard<'a, State<T>> {
    match state.waiter.idle(|| transport.now()) {
        Idle::Spin => {
            std::hint::spin_loop();
            let_callers_in(messenger, state)
        }
        Idle::Yield => {
            drop(state);
            rustix::thread::sched_yield();
            state = messenger.lock();
            state.waiter.yielded(|| transport.now());
            state
        }
        Idle::Sleep => {
            // Those with whom nobody has to do now may have come with something all the same.
            if state.engine.progress(transport, mine, true) {
                return state;
            }
            state.engine.interest(interest);
            match transport.arm(interest) {
                Ok(Armed::Ready) => state,
                Ok(Armed::Sleep) => sleep(messenger, state, transport),
                Err(error) => {
                    state.engine.end_all(error);
                    state
                }
            }
        }
    }
}

/// Sleeps until something can move, somebody comes, or a deadline has come.
fn sleep<'a, T: Transport>(
    messenger: &'a Messenger<T>,
    mut state: MutexGuard<'a, State<T>>,
    transport: &T,
) -> MutexGuard<'a, State<T>> {
    let now = transport.now();
    let left = state.engine.next_deadline().map_or(LONG, |deadline| deadline.saturating_duration_since(now));
    state.asleep = true;
    drop(state);
    let slept = wait_for([transport.descriptor(), messenger.notify.as_fd()], left.min(LONG));
    let mut state = messenger.lock();
    if !std::mem::replace(&mut state.asleep, false) {
        messenger.notify.clear();
    }
    if let Err(error) = slept {
        state.engine.end_all(error);
    }
    state
}

/// Ends the streams, with the reason as last words.
pub(super) fn close<T: Transport>(engine: &mut Engine, mut transport: T) {
    transport.revoke();
    last_words(engine, &mut transport);
}

/// Gets out what is left to be said, as far as that goes in a short time.
pub(super) fn last_words<T: Transport>(engine: &mut Engine, transport: &mut T) {
    let deadline = transport.now() + LAST_WORDS;
    while let Some(interest) = engine.last_words(transport) {
        let left = deadline.saturating_duration_since(transport.now());
        let slept: Result<()> = match transport.arm(&interest) {
            Ok(Armed::Ready) => Ok(()),
            Ok(Armed::Sleep) => wait_for([transport.descriptor()], left),
            Err(error) => Err(error),
        };
        if left.is_zero() || slept.is_err() {
            return;
        }
    }
}

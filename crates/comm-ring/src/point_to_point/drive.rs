//! The loop of the thread that drives the engine: it moves the bytes of all threads.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comm_core::{Armed, Error, Idle, Interest, Result, Transport};

use super::engine::{CallerBuffers, ProgressEngine};
use super::{Driver, Messenger, State};
use std::os::fd::AsFd;

/// The time for which a rank that fails or leaves tries to send its queued frames.
const LINGER: Duration = Duration::from_millis(200);
/// The time to sleep if nothing has a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// Ends all operations if the driving thread panics, so that the others do not wait for it.
struct EndOnUnwind<'a> {
    messenger: &'a Messenger,
    is_over: bool,
}

impl Drop for EndOnUnwind<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.messenger.lock();
            state.engine.end_all(Error::Internal("the thread that drove all messages panicked".into()));
            state.driver = Driver::Closed;
            state.background.stop_driving();
            self.messenger.notify(&state);
            self.messenger.notify_background(&state);
        }
    }
}

/// Moves bytes and waits until `enough` returns true, or the communicator has ended. Then another
/// thread may drive.
pub(super) fn drive<'a>(
    messenger: &'a Messenger,
    state: MutexGuard<'a, State>,
    mut transport: Box<dyn Transport>,
    caller: &mut CallerBuffers<'_>,
    enough: &impl Fn(&mut ProgressEngine, &mut CallerBuffers<'_>) -> bool,
) -> MutexGuard<'a, State> {
    let mut end_on_unwind = EndOnUnwind { messenger, is_over: false };
    // Dropped before `end_on_unwind`, which takes the lock.
    let mut state = state;
    state.waiter.reset();
    let mut interest = Interest::default();
    loop {
        let moved = state.engine.progress(&mut *transport, caller, false);
        if state.engine.poison_cause().is_some() {
            // The transport must not read memory that has been returned to its owner.
            close(&mut state.engine, transport);
            state.driver = Driver::Closed;
            break;
        }
        if moved {
            state.waiter.moved(|| transport.now());
        }
        if state.engine.take_completed() {
            messenger.notify(&state);
            state = messenger.notify_owners(state);
            if !state.engine.has_background() {
                messenger.notify_background(&state);
            }
        }
        if enough(&mut state.engine, caller) || state.background.is_displaced() {
            state.driver = Driver::Vacant(transport);
            break;
        }
        if moved {
            state = yield_lock(messenger, state, &*transport);
        } else {
            state = idle(messenger, state, &mut *transport, caller, &mut interest);
        }
    }
    messenger.notify(&state);
    messenger.notify_background(&state);
    end_on_unwind.is_over = true;
    state
}

/// Gives other threads a chance to take the lock, which relocking immediately would prevent.
fn yield_lock<'a>(
    messenger: &'a Messenger,
    state: MutexGuard<'a, State>,
    transport: &dyn Transport,
) -> MutexGuard<'a, State> {
    if messenger.callers.load(Ordering::Relaxed) == 0 {
        return state;
    }
    drop(state);
    transport.yield_now();
    messenger.lock()
}

/// Spins, yields or sleeps once, because nothing moves.
fn idle<'a>(
    messenger: &'a Messenger,
    mut state: MutexGuard<'a, State>,
    transport: &mut dyn Transport,
    caller: &mut CallerBuffers<'_>,
    interest: &mut Interest,
) -> MutexGuard<'a, State> {
    match state.waiter.idle(|| transport.now(), || transport.peers_run_elsewhere(), || false) {
        Idle::Spin => {
            std::hint::spin_loop();
            yield_lock(messenger, state, transport)
        }
        Idle::Yield => {
            let yielding = state.waiter.begin_yield(|| transport.now());
            drop(state);
            transport.yield_now();
            state = messenger.lock();
            state.waiter.end_yield(yielding, || transport.now());
            state
        }
        Idle::Sleep => {
            // Peers that no operation involves may have sent something, too. The deadline of an
            // operation may have passed since it was last checked; the thread that waits for that
            // operation must not sleep any more.
            if state.engine.progress(transport, caller, true) || state.engine.has_completed() {
                return state;
            }
            state.engine.interest(interest, transport);
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

/// Sleeps until something can move, another thread needs the driver, or a deadline has passed.
fn sleep<'a>(
    messenger: &'a Messenger,
    mut state: MutexGuard<'a, State>,
    transport: &dyn Transport,
) -> MutexGuard<'a, State> {
    let wakeup = match messenger.wakeup() {
        Ok(wakeup) => wakeup,
        Err(error) => {
            state.engine.end_all(error);
            return state;
        }
    };
    let now = transport.now();
    let left = state.engine.next_deadline().map_or(LONG, |deadline| deadline.saturating_duration_since(now));
    state.asleep = true;
    drop(state);
    let slept = transport.sleep(Some(wakeup.as_fd()), left.min(LONG));
    let mut state = messenger.lock();
    if !std::mem::replace(&mut state.asleep, false) {
        wakeup.clear();
    }
    if let Err(error) = slept {
        state.engine.end_all(error);
    }
    state
}

/// Reports the cause to the peers, then closes the streams.
pub(super) fn close(engine: &mut ProgressEngine, mut transport: Box<dyn Transport>) {
    transport.revoke();
    linger(engine, &mut *transport);
}

/// Sends queued frames for a short time.
pub(super) fn linger(engine: &mut ProgressEngine, transport: &mut dyn Transport) {
    let deadline = transport.now() + LINGER;
    while let Some(interest) = engine.linger(transport) {
        let left = deadline.saturating_duration_since(transport.now());
        let slept: Result<()> = match transport.arm(&interest) {
            Ok(Armed::Ready) => Ok(()),
            Ok(Armed::Sleep) => transport.sleep(None, left),
            Err(error) => Err(error),
        };
        if left.is_zero() || slept.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

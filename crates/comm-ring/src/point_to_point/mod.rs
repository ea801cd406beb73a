//! Messages between two ranks: how the threads that make calls share one lane.
//!
//! One of them at a time has the transport and *drives*: it moves everybody's bytes, and sleeps when nothing moves. The
//! others leave what they want in the engine and wait to be told. When the driver's own call has ended it lets another
//! one drive. Its own memory is the only one of a caller that is touched; a caller that merely waits has its message
//! copied, so that no memory is used by a thread that did not borrow it.

mod bell;
mod drive;
mod engine;
mod frame;
mod matching;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{
    CallOptions, Error, HostView, HostViewMut, Incoming, Outgoing, Received, Result, Shape, Source, TagMatch,
    Transport,
};

use crate::RingConfig;
use crate::wait::Waiter;
use bell::Bell;
use engine::{Engine, Mine, Outcome, Payload, Recv, Send, Space, Ticket};
use matching::Pattern;

/// Sends and receives messages over one lane, for any number of threads.
pub(crate) struct Messenger<T: Transport> {
    state: Mutex<State<T>>,
    /// Something ended, or nobody drives.
    change: Condvar,
    bell: Bell,
    /// How many threads are about to take the lock.
    callers: AtomicUsize,
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
            bell: Bell::new()?,
            callers: AtomicUsize::new(0),
        })
    }

    pub(crate) fn send(
        &self,
        to: usize,
        tag: u64,
        message: HostView<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let (mut state, payload) = self.enter_with(message);
        let mut mine = Mine::default();
        state.begin_send(&mut mine, Send::new((to, tag), message, payload), message, options.timeout);
        self.complete(state, mine).map(drop)
    }

    pub(crate) fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        let mut state = self.enter();
        let mut mine = Mine::default();
        state.begin_recv(&mut mine, (from, tag), buffer, options.timeout);
        some(self.complete(state, mine))
    }

    pub(crate) fn send_recv(
        &self,
        (to, send_tag, message): (usize, u64, HostView<'_>),
        (from, recv_tag, buffer): (Source, TagMatch, HostViewMut<'_>),
        options: &CallOptions,
    ) -> Result<Received> {
        let (mut state, payload) = self.enter_with(message);
        state.engine.check_rank(to)?;
        if let Source::Rank(rank) = from {
            state.engine.check_rank(rank)?;
        }
        let mut mine = Mine::default();
        state.begin_recv(&mut mine, (from, recv_tag), buffer, options.timeout);
        state.begin_send(&mut mine, Send::new((to, send_tag), message, payload), message, options.timeout);
        some(self.complete(state, mine))
    }

    pub(crate) fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        let mut state = self.enter();
        let ticket = state.engine.number();
        state.engine.probe(ticket, Pattern { from, tag }, options.timeout);
        some(self.complete(state, Mine { probe: Some(ticket), ..Mine::default() }))
    }

    /// Looks at what has arrived, if nobody else does.
    pub(crate) fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        let mut state = self.enter();
        let pattern = Pattern { from, tag };
        let lost = |error: &Error| matches!(error, Error::PeerLost { .. });
        state.engine.check_source(pattern).or_else(|error| if lost(&error) { Ok(()) } else { Err(error) })?;
        let mut found = state.engine.look(pattern);
        let State { engine, seat, .. } = &mut *state;
        if let (None, Seat::Free(transport)) = (found, seat) {
            engine.progress(transport, &mut Mine::default(), true);
            found = state.engine.look(pattern);
            self.let_drive(state);
        }
        Ok(found)
    }

    pub(crate) fn post_send(&self, to: usize, tag: u64, message: Box<dyn Outgoing>, options: &CallOptions) {
        let mut state = self.enter();
        let ticket = state.engine.number();
        let send = Send::owned((to, tag), message);
        state.engine.send(ticket, send, options.timeout, &Mine::default());
        self.let_drive(state);
    }

    pub(crate) fn post_recv(
        &self,
        from: Source,
        tag: TagMatch,
        mut buffer: Box<dyn Incoming>,
        options: &CallOptions,
    ) {
        let mut state = self.enter();
        let ticket = state.engine.number();
        let view = buffer.view_mut();
        let room = (view.len(), view.dtype());
        let recv = Recv::new((from, tag), room, Space::Owned(buffer));
        state.engine.recv(ticket, recv, options.timeout, &mut Mine::default());
        self.let_drive(state);
    }

    /// Communicates until nothing is under way in the background.
    pub(crate) fn drive(&self) {
        drop(self.work(self.enter(), &mut Mine::default(), |engine, _| !engine.has_background()));
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

    /// The state for a thread that comes with a message, and where the message is for those who drive. It is copied
    /// without the lock.
    fn enter_with(&self, message: HostView<'_>) -> (MutexGuard<'_, State<T>>, Payload) {
        let state = self.enter();
        if state.is_free() {
            return (state, Payload::Lent);
        }
        drop(state);
        let copy = Payload::Copied(message.bytes().to_vec());
        (self.enter(), copy)
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
                self.bell.ring();
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

    /// Waits for a call that was begun, and takes its outcome.
    fn complete(&self, state: MutexGuard<'_, State<T>>, mut mine: Mine<'_>) -> Result<Option<Received>> {
        let mut state = self.work(state, &mut mine, settled);
        let Mine { send, recv, probe } = mine;
        let sent = send.and_then(|(ticket, _)| state.engine.take_outcome(ticket));
        let received = recv.as_ref().and_then(|(ticket, _)| state.engine.take_outcome(*ticket));
        let probed = probe.and_then(|ticket| state.engine.take_outcome(ticket));
        drop(state);
        if let (Some(outcome), Some((_, buffer))) = (&received, recv)
            && let Some(start) = buffer.get_mut(..outcome.staged.len())
        {
            start.copy_from_slice(&outcome.staged);
        }
        let mut result = Ok(None);
        for outcome in [sent, received, probed].into_iter().flatten() {
            result = result.and(outcome.result);
        }
        result
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
                        self.bell.ring();
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
        self.tell(state)
    }
}

impl<T: Transport> State<T> {
    /// Whether a caller that begins now is sure to drive: then its memory need not be copied.
    const fn is_free(&self) -> bool {
        matches!(self.seat, Seat::Free(_))
    }

    fn begin_send<'a>(&mut self, mine: &mut Mine<'a>, send: Send, message: HostView<'a>, timeout: Duration) {
        let ticket = self.engine.number();
        mine.send = Some((ticket, message.bytes()));
        self.engine.send(ticket, send, timeout, mine);
    }

    fn begin_recv<'a>(
        &mut self,
        mine: &mut Mine<'a>,
        pattern: (Source, TagMatch),
        buffer: HostViewMut<'a>,
        timeout: Duration,
    ) {
        let ticket = self.engine.number();
        let room = (buffer.len(), buffer.dtype());
        let space = if self.is_free() { Space::Lent } else { Space::Staged(Vec::new()) };
        mine.recv = Some((ticket, buffer.into_bytes()));
        self.engine.recv(ticket, Recv::new(pattern, room, space), timeout, mine);
    }
}

/// Whether a call has ended. If one half of it failed, the other one ends too, as soon as it can.
fn settled(engine: &mut Engine, mine: &mut Mine<'_>) -> bool {
    let failure = |engine: &Engine, ticket: Ticket| {
        let ended =
            |outcome: &Outcome| outcome.result.as_ref().err().filter(|error| error.is_fatal()).cloned();
        engine.outcome(ticket).map(ended)
    };
    if let Some(probe) = mine.probe {
        return engine.outcome(probe).is_some();
    }
    match (&mine.send, &mine.recv) {
        (Some((send, bytes)), Some((recv, _))) => match (failure(engine, *send), failure(engine, *recv)) {
            (Some(_), Some(_)) => true,
            (Some(Some(error)), None) => engine.withdraw(*recv, error),
            (None, Some(Some(_))) => engine.let_go(*send, bytes),
            _ => false,
        },
        (Some((ticket, _)), None) => engine.outcome(*ticket).is_some(),
        (None, Some((ticket, _))) => engine.outcome(*ticket).is_some(),
        (None, None) => true,
    }
}

fn some(result: Result<Option<Received>>) -> Result<Received> {
    result?.ok_or_else(|| Error::Internal("a receive ended without a message".into()))
}

impl<T: Transport> Drop for Messenger<T> {
    /// Tells the others that this rank leaves in order.
    fn drop(&mut self) {
        let State { engine, seat, .. } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Seat::Free(transport) = seat {
            if engine.poison_cause().is_none() {
                engine.say_goodbye();
            }
            drive::last_words(engine, transport);
        }
    }
}

//! The calls for messages: each begins an operation and returns its outcome.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comm_core::{
    CallOptions, DType, Error, HostView, HostViewMut, Idle, Incoming, Received, RecvFrom, Result, SendTo,
    Shape, Source, StartedSend, TagMatch, Unsent, copy,
};

use super::engine::{
    CallerBuffers, NeedsOperation, Outcome, PartlyReceived, PartlySent, Payload, ProgressEngine, RecvBuffer,
    RecvRequest, RequestId, SendRequest,
};
use super::matching::MatchKey;
use super::{Driver, Messenger, State};

/// The number of sends that begin one after the other until their messages are sent together.
const POSTS_TOGETHER: u32 = 16;

impl Messenger {
    pub(crate) fn send(
        &self,
        to: usize,
        tag: u64,
        message: HostView<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let (mut state, payload) = self.lock_with_payload(message);
        let Err(partly) = state.send_at_once((to, tag), message) else {
            self.release(state);
            return Ok(());
        };
        let mut caller = CallerBuffers::default();
        let send = SendRequest::new((to, tag), shape(message), payload);
        state.begin_send(&mut caller, send, message, partly, options.timeout);
        self.complete(state, caller).map(drop)
    }

    pub(crate) fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        mut buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        let mut state = self.lock_to_drive();
        let partly = match self.recv_soon(&mut state, MatchKey { from, tag }, buffer.reborrow()) {
            Ok(received) => return Ok(received),
            Err(partly) => partly,
        };
        let mut caller = CallerBuffers::default();
        state.begin_recv(&mut caller, (from, tag), buffer, partly, options.timeout);
        some(self.complete(state, caller))
    }

    pub(crate) fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        mut buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        let (mut state, payload) = self.lock_with_payload(message);
        state.engine.check_rank(to.rank)?;
        if let Source::Rank(rank) = from.source {
            state.engine.check_rank(rank)?;
        }
        let sent = state.send_at_once((to.rank, to.tag), message);
        let key = MatchKey { from: from.source, tag: from.tag };
        let received =
            sent.map_err(|_| None).and_then(|()| self.recv_soon(&mut state, key, buffer.reborrow()));
        let partly = match received {
            Ok(received) => {
                self.release(state);
                return Ok(received);
            }
            Err(partly) => partly,
        };
        let mut caller = CallerBuffers::default();
        state.begin_recv(&mut caller, (from.source, from.tag), buffer, partly, options.timeout);
        if let Err(partly) = sent {
            let send = SendRequest::new((to.rank, to.tag), shape(message), payload);
            state.begin_send(&mut caller, send, message, partly, options.timeout);
        }
        some(self.complete(state, caller))
    }

    pub(crate) fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        let mut state = self.lock_to_drive();
        let request = state.engine.next_request();
        state.engine.probe(request, MatchKey { from, tag }, options.timeout);
        some(self.complete(state, CallerBuffers { probe: Some(request), ..CallerBuffers::default() }))
    }

    /// Reads bytes that have arrived if no other thread drives the engine, and returns a matching
    /// message if there is one.
    pub(crate) fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        let mut state = self.lock_as_caller();
        let key = MatchKey { from, tag };
        let lost = |error: &Error| matches!(error, Error::PeerLost { .. });
        state.engine.check_source(key).or_else(|error| if lost(&error) { Ok(()) } else { Err(error) })?;
        let mut found = state.engine.peek(key);
        let State { engine, driver, .. } = &mut *state;
        if let (None, Driver::Vacant(transport)) = (found, driver) {
            engine.progress(&mut **transport, &mut CallerBuffers::default(), true);
            found = state.engine.peek(key);
            self.hand_over(state);
        }
        Ok(found)
    }

    /// Sends as much as possible at once, and posts the rest.
    pub(crate) fn start_send(
        &self,
        to: usize,
        tag: u64,
        message: &mut dyn Unsent,
        options: &CallOptions,
    ) -> StartedSend {
        let mut state = self.lock_as_caller();
        let waits = state.waits_for_more(to);
        let sent = message
            .view()
            .map(|view| (shape(view), if waits { Err(None) } else { state.send_at_once((to, tag), view) }));
        let (shape, partly) = match sent {
            Ok((shape, Err(partly))) => (shape, partly),
            ended => {
                self.release(state);
                return StartedSend::Ended(ended.map(drop));
            }
        };
        let message = match message.post() {
            Ok(message) => message,
            Err(error) => {
                if let Some(partly) = partly {
                    state.engine.abandon(to, partly, error.clone());
                }
                self.release(state);
                return StartedSend::Ended(Err(error));
            }
        };
        let request = state.engine.next_request();
        let send = SendRequest::new((to, tag), shape, Payload::Owned(message));
        state.engine.send_rest(request, send, options.timeout, partly, &CallerBuffers::default());
        if let State { engine, driver: Driver::Vacant(transport), .. } = &mut *state
            && !waits
        {
            engine.progress(&mut **transport, &mut CallerBuffers::default(), false);
        }
        let needs_drive = state.needs_background_thread();
        self.notify_posted();
        self.hand_over(state);
        StartedSend::Pending { needs_drive }
    }

    /// Returns whether a thread must call [`Messenger::drive`].
    pub(crate) fn post_recv(
        &self,
        from: Source,
        tag: TagMatch,
        mut buffer: Box<dyn Incoming>,
        options: &CallOptions,
    ) -> bool {
        let capacity = match buffer.view_mut().map(|view| (view.len(), view.dtype())) {
            Ok(capacity) => capacity,
            Err(error) => {
                buffer.complete(Err(error));
                return false;
            }
        };
        let mut state = self.lock_as_caller();
        let request = state.engine.next_request();
        let recv = RecvRequest::new((from, tag), capacity, RecvBuffer::Owned(buffer));
        state.engine.recv(request, recv, options.timeout, &mut CallerBuffers::default());
        let needs_thread = state.needs_background_thread();
        self.notify_posted();
        self.hand_over(state);
        needs_thread
    }

    /// Cancels background receives that no message has matched, after reading bytes that have
    /// arrived.
    pub(crate) fn cancel_recvs(&self) {
        let mut state = self.lock_as_caller();
        if let State { engine, driver: Driver::Vacant(transport), .. } = &mut *state {
            engine.progress(&mut **transport, &mut CallerBuffers::default(), true);
        }
        state.engine.cancel_recvs();
        self.hand_over(state);
    }

    /// Locks the state for a thread that sends a message, and returns the location of its bytes.
    /// Copies them, without holding the lock, if another thread drives the engine.
    fn lock_with_payload(&self, message: HostView<'_>) -> (MutexGuard<'_, State>, Payload) {
        let state = self.lock_to_drive();
        if state.is_vacant() {
            return (state, Payload::Caller);
        }
        drop(state);
        let copy = Payload::Copied(message.bytes().to_vec());
        (self.lock_to_drive(), copy)
    }

    /// Receives the bytes that arrive before this thread would stop to spin. It keeps the lock
    /// meanwhile, but not if another thread wants it.
    ///
    /// # Errors
    /// If the message needs an operation: the part that was received, if any.
    fn recv_soon(
        &self,
        state: &mut State,
        key: MatchKey,
        buffer: HostViewMut<'_>,
    ) -> Result<Received, Option<PartlyReceived>> {
        let State { engine, driver: Driver::Vacant(transport), waiter, .. } = state else {
            return Err(None);
        };
        let from = (engine.only_source(key.from).ok_or(None)?, key.tag);
        let (dtype, bytes) = (buffer.dtype(), buffer.into_bytes());
        let mut partly = None;
        waiter.reset();
        let mut polls = waiter.polls();
        loop {
            let before = partly;
            match engine.recv_at_once(&mut **transport, from, (&mut *bytes, dtype), &mut partly) {
                Ok(Some(received)) => return Ok(received),
                Ok(None) => {}
                Err(NeedsOperation) => break,
            }
            if partly != before {
                waiter.reset();
            }
            if self.callers.load(Ordering::Relaxed) > 0 {
                break;
            }
            polls = polls.saturating_sub(1);
            if polls == 0 {
                let sender_runs_now = || transport.run_now(&[from.0]);
                let idle =
                    waiter.idle(|| transport.now(), || transport.peers_run_elsewhere(), sender_runs_now);
                if idle != Idle::Spin {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        Err(partly)
    }

    /// Releases the state after a call. What the call has read may have ended operations of others.
    #[inline]
    fn release(&self, mut state: MutexGuard<'_, State>) {
        if state.engine.take_completed() || state.engine.poison_cause().is_some() {
            self.hand_over(state);
        }
    }

    /// Waits for a call that has begun, and returns its outcome.
    fn complete(
        &self,
        state: MutexGuard<'_, State>,
        mut caller: CallerBuffers<'_>,
    ) -> Result<Option<Received>> {
        let mut state = self.drive_until(state, &mut caller, is_complete);
        let CallerBuffers { send, recv, probe } = caller;
        let sent = send.and_then(|(request, _)| state.engine.take_outcome(request));
        let received = recv.as_ref().and_then(|(request, _)| state.engine.take_outcome(*request));
        let probed = probe.and_then(|request| state.engine.take_outcome(request));
        self.release(state);
        if let (Some(outcome), Some((_, buffer))) = (&received, recv)
            && let Some(start) = buffer.get_mut(..outcome.staged.len())
        {
            copy(start, &outcome.staged);
        }
        let mut result = Ok(None);
        for outcome in [sent, received, probed].into_iter().flatten() {
            result = result.and(outcome.result);
        }
        result
    }
}

impl State {
    fn begin_send<'a>(
        &mut self,
        caller: &mut CallerBuffers<'a>,
        send: SendRequest,
        message: HostView<'a>,
        partly: Option<PartlySent>,
        timeout: Duration,
    ) {
        let request = self.engine.next_request();
        caller.send = Some((request, message.bytes()));
        self.engine.send_rest(request, send, timeout, partly, caller);
    }

    /// Returns whether a send that begins now waits for others, which are then sent together.
    fn waits_for_more(&mut self, to: usize) -> bool {
        let waits = match &self.driver {
            Driver::Vacant(transport) if to < transport.group().size() => {
                !self.posts.is_multiple_of(POSTS_TOGETHER) && transport.sends_by_system_call(to)
            }
            _ => false,
        };
        let posts = self.posts.wrapping_add(1);
        if !waits {
            self.count_turn();
        }
        self.posts = posts;
        waits
    }

    /// Sends a message at once if no thread drives the engine and the message needs no operation.
    fn send_at_once(&mut self, to: (usize, u64), message: HostView<'_>) -> Result<(), Option<PartlySent>> {
        match &mut self.driver {
            Driver::Vacant(transport) => self.engine.send_at_once(&mut **transport, to, message),
            Driver::Occupied | Driver::Closed => Err(None),
        }
    }

    fn begin_recv<'a>(
        &mut self,
        caller: &mut CallerBuffers<'a>,
        key: (Source, TagMatch),
        buffer: HostViewMut<'a>,
        partly: Option<PartlyReceived>,
        timeout: Duration,
    ) {
        let request = self.engine.next_request();
        let capacity = (buffer.len(), buffer.dtype());
        let dst = if self.is_vacant() { RecvBuffer::Caller } else { RecvBuffer::Staged(Vec::new()) };
        caller.recv = Some((request, buffer.into_bytes()));
        let recv = RecvRequest::new(key, capacity, dst);
        self.engine.recv_rest(request, recv, timeout, partly, caller);
    }
}

/// Returns whether a call has ended. If one half of a `send_recv` failed, the other half is
/// cancelled as soon as possible.
fn is_complete(engine: &mut ProgressEngine, caller: &mut CallerBuffers<'_>) -> bool {
    let ends_both = |error: &&Error| error.is_fatal() || matches!(error, Error::PeerLost { .. });
    let failure = |engine: &ProgressEngine, request: RequestId| {
        let ended = |outcome: &Outcome| outcome.result.as_ref().err().filter(ends_both).cloned();
        engine.outcome(request).map(ended)
    };
    if let Some(probe) = caller.probe {
        return engine.outcome(probe).is_some();
    }
    match (&caller.send, &caller.recv) {
        (Some((send, bytes)), Some((recv, _))) => match (failure(engine, *send), failure(engine, *recv)) {
            (Some(_), Some(_)) => true,
            (Some(Some(error)), None) => engine.cancel(*recv, error),
            (None, Some(Some(_))) => engine.detach(*send, bytes),
            _ => false,
        },
        (Some((request, _)), None) => engine.outcome(*request).is_some(),
        (None, Some((request, _))) => engine.outcome(*request).is_some(),
        (None, None) => true,
    }
}

/// Returns the type of the elements of a message, and its length in bytes.
fn shape(message: HostView<'_>) -> (DType, usize) {
    (message.dtype(), message.bytes().len())
}

fn some(result: Result<Option<Received>>) -> Result<Received> {
    result?.ok_or_else(|| Error::Internal("a receive ended without a message".into()))
}

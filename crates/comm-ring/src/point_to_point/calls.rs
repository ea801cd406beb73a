//! The calls: what each begins, and how it takes its outcome.

use std::sync::MutexGuard;
use std::time::Duration;

use comm_core::{
    CallOptions, Error, HostView, HostViewMut, Incoming, Outgoing, Received, RecvFrom, Result, SendTo, Shape,
    Source, TagMatch, Transport,
};

use super::engine::{Engine, Mine, Outcome, Payload, Recv, Send, Space, Ticket};
use super::matching::Pattern;
use super::{Messenger, Seat, State};

impl<T: Transport> Messenger<T> {
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
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        let (mut state, payload) = self.enter_with(message);
        state.engine.check_rank(to.rank)?;
        if let Source::Rank(rank) = from.source {
            state.engine.check_rank(rank)?;
        }
        let mut mine = Mine::default();
        state.begin_recv(&mut mine, (from.source, from.tag), buffer, options.timeout);
        state.begin_send(&mut mine, Send::new((to.rank, to.tag), message, payload), message, options.timeout);
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
        let send = match Send::owned((to, tag), message) {
            Ok(send) => send,
            Err((message, error)) => return message.complete(Err(error)),
        };
        let mut state = self.enter();
        let ticket = state.engine.number();
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
        let room = match buffer.view_mut().map(|view| (view.len(), view.dtype())) {
            Ok(room) => room,
            Err(error) => return buffer.complete(Err(error)),
        };
        let mut state = self.enter();
        let ticket = state.engine.number();
        let recv = Recv::new((from, tag), room, Space::Owned(buffer));
        state.engine.recv(ticket, recv, options.timeout, &mut Mine::default());
        self.let_drive(state);
    }

    /// Ends the receives in the background that nothing has matched, after a last look at what has arrived.
    pub(crate) fn cancel_recvs(&self) {
        let mut state = self.enter();
        if let State { engine, seat: Seat::Free(transport), .. } = &mut *state {
            engine.progress(transport, &mut Mine::default(), true);
        }
        state.engine.cancel_recvs();
        self.let_drive(state);
    }

    /// The state for a thread that comes with a message, and where the message is for those who drive. It is copied
    /// without the lock.
    fn enter_with(&self, message: HostView<'_>) -> (MutexGuard<'_, State<T>>, Payload) {
        let state = self.enter();
        if state.is_free() {
            return (state, Payload::RecvBuf);
        }
        drop(state);
        let copy = Payload::Copied(message.bytes().to_vec());
        (self.enter(), copy)
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
}

impl<T: Transport> State<T> {
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
        let space = if self.is_free() { Space::RecvBuf } else { Space::Staged(Vec::new()) };
        mine.recv = Some((ticket, buffer.into_bytes()));
        self.engine.recv(ticket, Recv::new(pattern, room, space), timeout, mine);
    }
}

/// Whether a call has ended. If one half of it failed, the other one ends too, as soon as it can.
fn settled(engine: &mut Engine, mine: &mut Mine<'_>) -> bool {
    let ends_both = |error: &&Error| error.is_fatal() || matches!(error, Error::PeerLost { .. });
    let failure = |engine: &Engine, ticket: Ticket| {
        let ended = |outcome: &Outcome| outcome.result.as_ref().err().filter(ends_both).cloned();
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

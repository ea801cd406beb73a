//! Accepts connections and authenticates them, without blocking and within limits.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::simulation;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::pending::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, Pending, choose_victim};
use crate::poll::deadline_after;
use crate::rate_limit::RateLimit;

/// The tokens of listeners are less than this, and the tokens of connections are not.
const LISTENERS_MAX: u64 = 1 << 16;
const EVENTS_PER_TURN: usize = 64;

/// The accepting side of a protocol: its listeners and a handshake.
pub trait Accept {
    /// A listening socket, which does not block.
    type Listener: AsFd;
    /// A connection whose handshake has not ended.
    type Conn: PendingConn;
    /// An authenticated connection.
    type Accepted;

    /// Names the listeners in logs.
    const NAME: &'static str;

    /// The limits on pending connections.
    fn limits(&self) -> Limits;

    /// Accepts a connection if there is one.
    ///
    /// # Errors
    /// The error of the listener, for example if the process has no descriptor left. A problem with
    /// a single connection is not an error but [`HandshakeState::Broken`] or
    /// [`HandshakeState::Rejected`].
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<AcceptorState<Self>>>;

    /// Continues the handshake without blocking. If there is no capacity for another connection,
    /// rejects this one instead of completing the handshake.
    fn handshake(&self, conn: Self::Conn, has_capacity: bool) -> AcceptorState<Self>;
}

/// An accepted connection whose handshake has not ended.
pub trait PendingConn: AsFd {
    /// The address of the peer, if the protocol has addresses.
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    /// Whether the peer has sent a valid beginning of the handshake.
    fn has_greeted(&self) -> bool {
        false
    }

    /// Whether the handshake waits for the connection to become writable rather than readable.
    fn wants_write(&self) -> bool {
        false
    }
}

/// A connection on which the peer sends one message, without an address.
impl PendingConn for OwnedFd {}

type AcceptorState<A> = HandshakeState<<A as Accept>::Conn, <A as Accept>::Accepted>;

/// The state of an accepted connection.
#[derive(Debug)]
pub enum HandshakeState<C, A> {
    /// The handshake continues when the connection is readable, or writable if
    /// [`PendingConn::wants_write`].
    Pending(C),
    /// The peer is authenticated and the handshake complete.
    Accepted(A),
    /// The connection is closed, and this reason is logged as a warning.
    Rejected(String),
    /// The connection broke during the handshake.
    Broken(io::Error),
}

/// The limits on pending connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most connections that may be pending; [`pending_max`](crate::pending_max) suits most
    /// listeners.
    pub pending_max: usize,
    /// The longest time that a handshake may take, if it is limited.
    pub handshake_timeout: Option<Duration>,
}

/// Accepts connections on one or more listeners, and drives their handshakes.
///
/// Even if many processes connect, a turn is short, the number of pending connections is bounded,
/// and they do not keep descriptors that the process needs. Authenticated connections leave the
/// acceptor.
#[derive(Debug)]
pub struct Acceptor<A: Accept> {
    listeners: Vec<A::Listener>,
    epoll: Arc<OwnedFd>,
    /// Keyed by id, so that the first is the oldest.
    pending: BTreeMap<u64, Entry<A::Conn>>,
    next_id: u64,
    /// The time at which the listeners are watched again, if they are paused.
    paused_until: Option<Instant>,
    /// The error of the last attempt to accept a connection, if it failed.
    accept_error: Option<io::Error>,
    warnings: RateLimit,
}

#[derive(Debug)]
struct Entry<C> {
    conn: C,
    since: Instant,
    deadline: Option<Instant>,
}

impl<A: Accept> Acceptor<A> {
    /// Creates an acceptor that watches listeners, which should be few.
    ///
    /// # Errors
    /// The error of epoll, for example if the process has no descriptor left.
    pub fn new(listeners: impl IntoIterator<Item = A::Listener>) -> io::Result<Self> {
        let listeners: Vec<A::Listener> = listeners.into_iter().collect();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (token, listener) in (0..LISTENERS_MAX).zip(&listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)?;
        }
        Ok(Self {
            listeners,
            epoll: Arc::new(epoll),
            pending: BTreeMap::new(),
            next_id: LISTENERS_MAX,
            paused_until: None,
            accept_error: None,
            warnings: RateLimit::default(),
        })
    }

    /// Returns the descriptor that is readable when a turn can make progress.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Returns the time at which a turn is due even if the descriptor is not readable.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pending.values().filter_map(|pending| pending.deadline).chain(self.paused_until).min()
    }

    /// Returns the number of connections that have not authenticated.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the error that currently prevents a listener from accepting connections, for
    /// example that the process has no descriptor left.
    #[must_use]
    pub const fn accept_error(&self) -> Option<&io::Error> {
        self.accept_error.as_ref()
    }

    /// Closes all pending connections. Peers among them will reconnect.
    pub fn close_pending(&mut self) {
        self.pending.clear();
    }

    /// Handles one batch of events without blocking, and returns the connections that have
    /// authenticated. Once there are `capacity` of them, further handshakes are rejected, and those
    /// peers will reconnect.
    ///
    /// # Errors
    /// The error of epoll.
    pub fn turn(&mut self, protocol: &A, capacity: usize) -> io::Result<Vec<A::Accepted>> {
        self.expire();
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_TURN];
        let events = match epoll::wait(&*self.epoll, &mut buffer, Some(&Timespec::default())) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        };
        let mut accepted = Vec::new();
        for event in &*events {
            match event.data.u64() {
                at @ 0..LISTENERS_MAX => self.accept_some(protocol, at as usize, capacity, &mut accepted),
                id => accepted.extend(self.resume(protocol, id, accepted.len() < capacity)),
            }
        }
        Ok(accepted)
    }

    /// Closes connections whose deadline has passed, and watches the listeners again once a pause
    /// is over.
    fn expire(&mut self) {
        let now = simulation::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.watch_listeners(None);
        }
        let is_late = |pending: &Entry<_>| pending.deadline.is_some_and(|deadline| deadline <= now);
        for (_, late) in self.pending.extract_if(.., |_, pending| is_late(pending)) {
            reject::<A>(&mut self.warnings, late.conn.address(), "its handshake took too long");
        }
    }

    /// Watches the listeners, or stops watching them until `paused_until`.
    fn watch_listeners(&mut self, paused_until: Option<Instant>) {
        let events = if paused_until.is_none() { EventFlags::IN } else { EventFlags::empty() };
        let mut tokens = (0..LISTENERS_MAX).map(EventData::new_u64).zip(&self.listeners);
        let watched =
            tokens.try_for_each(|(token, listener)| epoll::modify(&*self.epoll, listener, token, events));
        match watched {
            Ok(()) => self.paused_until = paused_until,
            Err(errno) => tracing::error!(listener = A::NAME, %errno, "cannot watch a listener"),
        }
    }

    fn pause(&mut self) {
        self.watch_listeners(simulation::now().checked_add(ACCEPT_PAUSE));
    }

    /// Accepts a bounded number of connections, so that a flood of them does not delay other work.
    /// epoll reports the remaining ones again.
    fn accept_some(
        &mut self,
        protocol: &A,
        listener: usize,
        capacity: usize,
        accepted: &mut Vec<A::Accepted>,
    ) {
        for _ in 0..ACCEPTS_PER_TURN {
            let is_full = self.pending.len() >= protocol.limits().pending_max;
            if is_full && self.victim().is_none() {
                return self.pause();
            }
            let Some(listener) = self.listeners.get(listener) else { return };
            match protocol.accept(listener) {
                Ok(Some(state)) => {
                    self.accept_error = None;
                    accepted.extend(self.admit(protocol, state, accepted.len() < capacity));
                }
                Ok(None) => return,
                Err(error) => {
                    if let Some(suppressed) = self.warnings.admit(simulation::now()) {
                        tracing::warn!(listener = A::NAME, %error, suppressed, "cannot accept a connection");
                    }
                    self.accept_error = Some(error);
                    if !self.close_victim() {
                        return self.pause();
                    }
                }
            }
        }
    }

    /// Chooses a pending connection that can be closed in favour of another one.
    fn victim(&self) -> Option<u64> {
        let describe = |(&id, pending): (&u64, &Entry<A::Conn>)| {
            let source = pending.conn.address().map(|address| address.ip());
            Pending { id, source, since: pending.since, has_greeted: pending.conn.has_greeted() }
        };
        let pending: Vec<Pending> = self.pending.iter().map(describe).collect();
        choose_victim(&pending, simulation::now())
    }

    /// Closes a pending connection if one can be closed.
    fn close_victim(&mut self) -> bool {
        let Some(victim) = self.victim().and_then(|id| self.pending.remove(&id)) else { return false };
        let address = victim.conn.address();
        reject::<A>(&mut self.warnings, address, "it was silent while many others connected");
        true
    }

    /// Begins the handshake of a connection that was just accepted.
    fn admit(&mut self, protocol: &A, state: AcceptorState<A>, has_capacity: bool) -> Option<A::Accepted> {
        let (address, state) = match state {
            HandshakeState::Pending(conn) => (conn.address(), protocol.handshake(conn, has_capacity)),
            ended => (None, ended),
        };
        let limits = protocol.limits();
        if matches!(state, HandshakeState::Pending(_)) && self.pending.len() >= limits.pending_max {
            self.close_victim();
        }
        let deadline = limits.handshake_timeout.map(deadline_after);
        self.next_id += 1;
        self.handle_state(self.next_id, address, state, simulation::now(), deadline)
    }

    /// Continues the handshake of a connection that is ready.
    fn resume(&mut self, protocol: &A, id: u64, has_capacity: bool) -> Option<A::Accepted> {
        let Entry { conn, since, deadline } = self.pending.remove(&id)?;
        let address = conn.address();
        let state = match epoll::delete(&*self.epoll, &conn) {
            Ok(()) => protocol.handshake(conn, has_capacity),
            Err(errno) => HandshakeState::Broken(errno.into()),
        };
        self.handle_state(id, address, state, since, deadline)
    }

    /// Keeps, returns or closes a connection.
    fn handle_state(
        &mut self,
        id: u64,
        address: Option<SocketAddr>,
        state: AcceptorState<A>,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Option<A::Accepted> {
        let error = match state {
            HandshakeState::Accepted(accepted) => return Some(accepted),
            HandshakeState::Rejected(reason) => {
                reject::<A>(&mut self.warnings, address, &reason);
                return None;
            }
            HandshakeState::Broken(error) => error,
            HandshakeState::Pending(conn) => {
                let events = if conn.wants_write() { EventFlags::OUT } else { EventFlags::IN };
                match epoll::add(&*self.epoll, &conn, EventData::new_u64(id), events) {
                    Ok(()) => {
                        self.pending.insert(id, Entry { conn, since, deadline });
                        return None;
                    }
                    Err(errno) => errno.into(),
                }
            }
        };
        let address = address.map(tracing::field::display);
        tracing::debug!(listener = A::NAME, address, %error, "a connection broke during its handshake");
        None
    }
}

impl<A: Accept> AsFd for Acceptor<A> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn reject<A: Accept>(warnings: &mut RateLimit, address: Option<SocketAddr>, reason: &str) {
    if let Some(suppressed) = warnings.admit(simulation::now()) {
        let address = address.map(tracing::field::display);
        tracing::warn!(listener = A::NAME, address, reason, suppressed, "rejected a connection");
    }
}

#[cfg(test)]
mod tests;

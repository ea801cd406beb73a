//! Moves the bytes of one channel through one or more sockets per peer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    AbortHandle, AbortSignal, Armed, ChannelKind, Error, Group, Interest, Invalid, Process, RecvBuf, Result,
    Transport, simulation,
};
use comm_mesh::CoarseClock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::added::{AddedSockets, IncomingSocket};
use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::keepalive::{CheckTimer, Keepalive};
use crate::outgoing::NewSocket;
use crate::peer::{Peer, Slot};
use crate::protection::Established;

/// The epoll token of the abort signal; see [`Token`] for those of sockets.
const ABORT: u64 = u64::MAX;
/// The epoll token of the timer of checks for lost hosts.
const CHECK_TIMER: u64 = u64::MAX - 1;
/// The epoll token of sockets that peers add, and of connections made on demand.
const ACCEPT: u64 = u64::MAX - 2;
/// The events of sockets.
const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);
/// The maximum number of events that are handled before the abort signal is checked.
const EVENTS_PER_TURN: usize = 64;

/// One or more sockets to every other member of a group, or in a large group to those to which
/// something was sent or from which something was received.
///
/// Sockets are watched in edge-triggered mode, so a send, a receive or an arm makes at most one
/// system call. Nothing is allocated except the memory for reading ahead, once per peer, and for
/// the sockets that are added to a stream.
///
/// Dropping the transport ends its streams in an orderly way, without blocking. Accepted bytes
/// still arrive, unless the peer was at the same time sending bytes that were not received, or they
/// are not [released](Transport::released) yet. In a
/// forked child, dropping it only closes file descriptors.
#[derive(Debug)]
pub struct TcpTransport {
    group: Group,
    /// By rank; `None` for this rank, and for those that are not connected.
    peers: Vec<Option<Peer>>,
    config: ChannelConfig,
    epoll: OwnedFd,
    /// Whether sockets may hold bytes: of frames, of TLS or of stripes.
    holds_bytes: bool,
    /// Whether a stream has opened or ended since the transport was last armed.
    has_unreported_change: bool,
    abort: Arc<AbortSignal>,
    /// The timer of checks for lost hosts, if there are any.
    check_timer: Option<CheckTimer>,
    /// The sockets that are being added to streams, and connections that are made on demand, if
    /// there are any.
    added: Option<AddedSockets>,
    clock: CoarseClock,
    /// The process that owns the streams.
    process: Process,
}

/// The settings of the sockets of a channel.
#[derive(Debug)]
pub(crate) struct ChannelConfig {
    pub(crate) kind: ChannelKind,
    pub(crate) tcp: TcpConfig,
}

impl TcpTransport {
    /// Creates a transport from the connected sockets of peers. `added` lets this rank and its
    /// peers add sockets to streams, and makes connections on demand.
    pub(crate) fn new(
        group: Group,
        sockets: impl IntoIterator<Item = (usize, Established)>,
        added: Option<AddedSockets>,
        config: ChannelConfig,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the sockets of a channel", errno.into());
        let mut transport = Self {
            group,
            peers: (0..group.size()).map(|_| None).collect(),
            config,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            holds_bytes: false,
            has_unreported_change: false,
            abort: Arc::new(AbortSignal::new()?),
            check_timer: None,
            added,
            clock: CoarseClock::default(),
            process: Process::current(),
        };
        let (epoll, abort) = (&transport.epoll, &*transport.abort);
        epoll::add(epoll, abort, Token::Abort.data(), EventFlags::IN).map_err(failed)?;
        if let Some(added) = &transport.added {
            added.watch(epoll, Token::Accept.data()).map_err(failed)?;
        }
        for (rank, socket) in sockets {
            let connection = transport.connection(socket);
            transport.add_peer(rank, connection)?;
        }
        // Some may have been accepted before anything was watched.
        transport.accept_added()?;
        Ok(transport)
    }

    fn connection(&mut self, socket: Established) -> Connection {
        self.holds_bytes |= socket.protection.is_some() || socket.tls.is_some();
        Connection::new(socket, self.read_ahead())
    }

    fn read_ahead(&self) -> usize {
        self.config.tcp.read_ahead.max(TcpConfig::READ_AHEAD_MIN)
    }

    /// Adds a peer that was just connected.
    fn add_peer(&mut self, rank: usize, connection: Connection) -> Result<()> {
        let failed = |errno: Errno| Error::io("watch the socket of a rank", errno.into());
        let token = Token::Socket(rank, Slot::First);
        epoll::add(&self.epoll, &connection, token.data(), EVENTS).map_err(failed)?;
        let ChannelConfig { kind, tcp } = &self.config;
        let mut peer = Peer::new(rank, connection, tcp.stripe_bytes, self.read_ahead());
        let is_on_another_host = peer.is_on_another_host();
        if let Some(added) = &self.added {
            let sockets = tcp.sockets(*kind, !is_on_another_host);
            peer.outgoing().set_sockets(sockets, added.addresses(rank));
        }
        let keepalive = tcp.keepalive(*kind).filter(|_| is_on_another_host);
        self.peers[rank] = Some(peer);
        keepalive.map_or(Ok(()), |keepalive| self.detect_lost_host(rank, keepalive))
    }

    /// Whether a rank is connected. If it is not, its connection is requested, if it is to be made
    /// on demand.
    fn is_connected(&mut self, rank: usize) -> Result<bool> {
        if let Some(Some(_)) = self.peers.get(rank) { Ok(true) } else { self.request(rank) }
    }

    /// Requests the connection to a rank. Returns whether there is one now.
    #[cold]
    fn request(&mut self, rank: usize) -> Result<bool> {
        self.abort.check()?;
        self.take_made()?;
        if let Some(Some(_)) = self.peers.get(rank) {
            return Ok(true);
        }
        let is_pending = self.added.as_mut().map_or(Ok(false), |added| added.request(rank))?;
        if is_pending { Ok(false) } else { Err(Invalid::Rank { rank, size: self.group.size() }.into()) }
    }

    /// Takes the connections that were made on demand.
    fn take_made(&mut self) -> Result<()> {
        for (rank, made) in self.added.as_mut().map_or(Vec::new(), AddedSockets::take_made) {
            self.has_unreported_change = true;
            if let Some(socket) = made {
                let connection = self.connection(socket).assume_ready();
                self.add_peer(rank, connection)?;
            }
        }
        Ok(())
    }

    /// Takes the connections that were made on demand, and the sockets that peers have added to
    /// their streams.
    fn accept_added(&mut self) -> Result<()> {
        let Some(added) = &self.added else { return Ok(()) };
        let incoming = added.accept()?;
        // The first connection of a peer was made before it added others.
        self.take_made()?;
        incoming.into_iter().try_for_each(|incoming| self.add_incoming(incoming))
    }

    /// Adds a socket to the stream from a peer. One that cannot be added is closed.
    fn add_incoming(&mut self, incoming: IncomingSocket) -> Result<()> {
        let IncomingSocket { rank, number, connection, keepalive } = incoming;
        let data = Token::Socket(rank, Slot::Incoming(number)).data();
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return Ok(()) };
        let watched = epoll::add(&self.epoll, &connection, data, EVENTS);
        if let Err(error) = watched {
            tracing::warn!(rank, number, %error, "cannot watch a socket that a rank has added");
        } else if !peer.add_incoming(number, connection) {
            tracing::warn!(rank, number, "a rank has added the same socket twice");
        }
        keepalive.map_or(Ok(()), |keepalive| self.detect_lost_host(rank, keepalive))
    }

    /// Adds sockets to the stream to a peer if it needs some.
    fn grow(&mut self, to: usize) -> Result<()> {
        let (Some(added), Some(Some(peer))) = (&mut self.added, self.peers.get_mut(to)) else {
            return Ok(());
        };
        let now = simulation::now();
        let mut failed = added.give_up_unanswered(to, now);
        for socket in peer.grow(now) {
            if !added.connect(&self.epoll, (to, socket), Token::Connecting(to, socket.number).data()) {
                failed.push(socket);
            }
        }
        failed.into_iter().try_for_each(|socket| self.end_connect(to, socket, None))
    }

    /// Continues to connect a socket.
    fn resume(&mut self, rank: usize, number: u8) -> Result<()> {
        let resumed = self.added.as_mut().and_then(|added| added.resume(rank, number));
        resumed.map_or(Ok(()), |(socket, connection)| self.end_connect(rank, socket, connection))
    }

    /// Handles that a socket is connected, or cannot be. Once none is being connected, those that
    /// are carry the stream.
    fn end_connect(&mut self, rank: usize, socket: NewSocket, connection: Option<Connection>) -> Result<()> {
        let (Some(added), Some(Some(peer))) = (&self.added, self.peers.get_mut(rank)) else {
            return Ok(());
        };
        let outgoing = peer.outgoing();
        outgoing.end_connect(socket, connection);
        if outgoing.is_connecting() {
            return Ok(());
        }
        for address in outgoing.give_up_addresses() {
            let address = added.address(rank, address).map(tracing::field::display);
            tracing::warn!(rank, address, "cannot connect: the stream to the rank does not use this address");
        }
        let mut keepalive = None;
        for (socket, connection) in outgoing.take_connected() {
            let token = Token::Socket(rank, Slot::Outgoing(outgoing.count())).data();
            if epoll::modify(&self.epoll, &connection, token, EVENTS).is_ok() {
                self.holds_bytes = true;
                keepalive = keepalive.or_else(|| added.keepalive(socket));
                outgoing.add(connection, socket.address);
            }
        }
        outgoing.use_added(usize::MAX, simulation::now());
        keepalive.map_or(Ok(()), |keepalive| self.detect_lost_host(rank, keepalive))
    }

    /// Makes the transport detect that the host of a peer does not answer.
    fn detect_lost_host(&mut self, rank: usize, keepalive: Keepalive) -> Result<()> {
        if let Some(Some(peer)) = self.peers.get_mut(rank) {
            peer.detect_lost_host(keepalive);
        }
        if self.check_timer.is_some() {
            return Ok(());
        }
        let start = || {
            let timer = CheckTimer::start(keepalive)?;
            epoll::add(&self.epoll, &timer, Token::CheckTimer.data(), EventFlags::IN)?;
            Ok(timer)
        };
        let failed = |errno: Errno| Error::io("start a timer for a channel", errno.into());
        self.check_timer = Some(start().map_err(failed)?);
        Ok(())
    }

    /// Checks whether the hosts of all peers answer.
    fn check_hosts(&mut self) {
        self.check_timer.iter().for_each(CheckTimer::clear);
        for peer in self.peers.iter_mut().flatten() {
            self.has_unreported_change |= peer.check_host();
        }
    }

    /// Sends the rest of frames that sockets have accepted in part.
    fn flush(&mut self) {
        if self.holds_bytes {
            self.peers.iter_mut().flatten().for_each(Peer::flush);
        }
    }

    /// Whether one of several sockets to a peer holds bytes until it is writable.
    fn waits_to_flush(&self) -> bool {
        self.holds_bytes && self.peers.iter().flatten().any(Peer::holds_stripes)
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer> {
        self.abort.check()?;
        let invalid = Invalid::Rank { rank, size: self.group.size() };
        self.peers.get_mut(rank).and_then(Option::as_mut).ok_or_else(|| invalid.into())
    }

    /// Whether a transfer in the interest is known to make progress or fail.
    fn is_ready(&self, interest: &Interest) -> bool {
        let is_ready = |rank: &usize, can: fn(&Peer) -> bool| match self.peers.get(*rank) {
            Some(Some(peer)) => can(peer),
            _ => self.added.as_ref().is_some_and(|added| added.has_failed(*rank)),
        };
        interest.recv().iter().any(|rank| is_ready(rank, Peer::can_recv))
            || interest.send().iter().any(|rank| is_ready(rank, Peer::can_send))
    }

    /// Handles all events of epoll.
    fn poll_events(&mut self) -> Result<()> {
        loop {
            let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_TURN];
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default())) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("poll the sockets of a channel", errno.into())),
            };
            for event in &*events {
                match Token::from(event.data.u64()) {
                    Token::Abort => {}
                    Token::CheckTimer => self.check_hosts(),
                    Token::Accept => self.accept_added()?,
                    Token::Connecting(rank, number) => self.resume(rank, number)?,
                    Token::Socket(rank, slot) => {
                        if let Some(Some(peer)) = self.peers.get_mut(rank) {
                            self.has_unreported_change |= peer.handle_event(slot, event.flags);
                        }
                    }
                }
            }
            self.abort.check()?;
            if events.len() < EVENTS_PER_TURN {
                return Ok(());
            }
        }
    }
}

/// The descriptor that an event of epoll is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Abort,
    CheckTimer,
    /// Sockets that peers add.
    Accept,
    /// A socket of a peer.
    Socket(usize, Slot),
    /// A socket of this number that is being connected to a peer.
    Connecting(usize, u8),
}

impl Token {
    /// Encodes the token of a socket: its kind and number in 16 bits each, and the rank of the
    /// peer in 32.
    fn data(self) -> EventData {
        let (kind, number, rank) = match self {
            Self::Abort => return EventData::new_u64(ABORT),
            Self::CheckTimer => return EventData::new_u64(CHECK_TIMER),
            Self::Accept => return EventData::new_u64(ACCEPT),
            Self::Socket(rank, Slot::First) => (0, 0, rank),
            Self::Socket(rank, Slot::Outgoing(index)) => (1, index as u64, rank),
            Self::Socket(rank, Slot::Incoming(number)) => (2, number.into(), rank),
            Self::Connecting(rank, number) => (3, number.into(), rank),
        };
        EventData::new_u64(kind << 48 | number << 32 | rank as u64)
    }

    const fn from(token: u64) -> Self {
        let (number, rank) = ((token >> 32) as u8, (token & 0xffff_ffff) as usize);
        match (token, token >> 48) {
            (ABORT, _) => Self::Abort,
            (CHECK_TIMER, _) => Self::CheckTimer,
            (ACCEPT, _) => Self::Accept,
            (_, 0) => Self::Socket(rank, Slot::First),
            (_, 1) => Self::Socket(rank, Slot::Outgoing(number as usize)),
            (_, 2) => Self::Socket(rank, Slot::Incoming(number)),
            (_, _) => Self::Connecting(rank, number),
        }
    }
}

impl Transport for TcpTransport {
    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        simulation::now()
    }

    fn now_roughly(&mut self) -> Instant {
        self.clock.now()
    }

    fn is_open(&self, peer: usize) -> bool {
        matches!(self.peers.get(peer), Some(Some(_)))
    }

    fn is_full_mesh(&self) -> bool {
        self.group.size() <= self.config.tcp.full_mesh_max
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        if !self.is_connected(to)? {
            return Ok(0);
        }
        let peer = self.peer(to)?;
        let mut sent = peer.try_send(bytes)?;
        if sent == 0 && peer.sends_by_events() {
            self.poll_events()?;
            sent = self.peer(to)?.try_send(bytes)?;
        }
        if self.peer(to)?.may_grow() {
            self.grow(to)?;
        }
        Ok(sent)
    }

    fn released(&self, to: usize) -> u64 {
        self.peers.get(to).and_then(Option::as_ref).map_or(0, Peer::released)
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        if !self.is_connected(from)? {
            return Ok(0);
        }
        let peer = self.peer(from)?;
        let mut received = peer.try_recv(into)?;
        if received == 0 && peer.receives_by_events() {
            self.poll_events()?;
            received = self.peer(from)?.try_recv(into)?;
        }
        let peer = self.peer(from)?;
        if !peer.take_unconfirmed_end() {
            return Ok(received);
        }
        self.accept_added()?;
        if received > 0 { Ok(received) } else { self.peer(from)?.try_recv(into) }
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        if !self.is_connected(from)? {
            return Ok(RecvBuf::from_slice(&[]));
        }
        let peer = self.peer(from)?;
        if peer.fill(at_most)? == 0 && peer.receives_by_events() {
            self.poll_events()?;
            self.peer(from)?.fill(at_most)?;
        }
        let peer = self.peer(from)?;
        if peer.take_unconfirmed_end() {
            self.accept_added()?;
            self.peer(from)?.fill(at_most)?;
        }
        Ok(self.peer(from)?.filled(at_most))
    }

    fn fill_buf_copies(&mut self, _from: usize) -> bool {
        true
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        if bytes == 0 && !self.is_connected(from)? {
            return Ok(());
        }
        self.peer(from)?.consume(bytes)
    }

    /// Does nothing: accepted bytes were copied.
    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.abort.check()?;
        self.flush();
        // One of several sockets may have become writable, while another one still is.
        if self.is_ready(interest) && !self.waits_to_flush() {
            return Ok(Armed::Ready);
        }
        self.poll_events()?;
        self.flush();
        let awake = std::mem::take(&mut self.has_unreported_change) || self.is_ready(interest);
        Ok(if awake { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<AbortSignal>::clone(&self.abort)
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Shutting down a socket here would end the stream of the parent, and another thread
            // may have held the lock of the queue.
            std::mem::forget(self.added.take());
            return;
        }
        self.peers.iter_mut().flatten().for_each(Peer::close);
    }
}

#[cfg(test)]
mod tests;

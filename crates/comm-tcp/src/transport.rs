//! Moves the bytes of one channel through one or more sockets per peer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    AbortHandle, AbortSignal, Armed, Error, Group, Interest, Invalid, Process, RecvBuf, Result, Transport,
};
use comm_mesh::CoarseClock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::keepalive::{CheckTimer, Keepalive};
use crate::peer::Peer;
use crate::protection::Established;
use crate::stripes::Stripes;

/// The epoll token of the abort signal; see [`token`] for those of sockets.
const ABORT: u64 = u64::MAX;
/// The epoll token of the timer of checks for lost hosts.
const CHECK_TIMER: u64 = u64::MAX - 1;
/// The maximum number of events that are handled before the abort signal is checked.
const EVENTS_PER_TURN: usize = 64;

/// One or more sockets to every other member of a group.
///
/// Sockets are watched in edge-triggered mode, so a send, a receive or an arm makes at most one
/// system call. Nothing is allocated except the memory for reading ahead, once per peer.
///
/// Dropping the transport ends its streams in an orderly way, without blocking. Accepted bytes
/// still arrive, unless the peer was at the same time sending bytes that were not received, or they
/// are not [released](Transport::released) yet. In a
/// forked child, dropping it only closes file descriptors.
#[derive(Debug)]
pub struct TcpTransport {
    group: Group,
    /// By rank; `None` for this rank.
    peers: Vec<Option<Peer>>,
    epoll: OwnedFd,
    /// Whether bytes are sent in frames or in TLS.
    is_protected: bool,
    /// Whether a stream has ended since the transport was last armed.
    has_unreported_end: bool,
    abort: Arc<AbortSignal>,
    /// The timer of checks for lost hosts, if there are any.
    check_timer: Option<CheckTimer>,
    clock: CoarseClock,
    /// The process that owns the streams.
    process: Process,
}

impl TcpTransport {
    /// Creates a transport from the connected sockets of each peer, one per socket of `stripes`, in
    /// order.
    pub(crate) fn new(
        group: Group,
        sockets: impl IntoIterator<Item = (usize, Vec<Established>)>,
        stripes: Stripes,
        read_ahead: usize,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the sockets of a channel", errno.into());
        let mut transport = Self {
            group,
            peers: (0..group.size()).map(|_| None).collect(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            is_protected: false,
            has_unreported_end: false,
            abort: Arc::new(AbortSignal::new()?),
            check_timer: None,
            clock: CoarseClock::default(),
            process: Process::current(),
        };
        let (epoll, abort) = (&transport.epoll, &*transport.abort);
        epoll::add(epoll, abort, EventData::new_u64(ABORT), EventFlags::IN).map_err(failed)?;
        let read_ahead = read_ahead.max(TcpConfig::READ_AHEAD_MIN);
        for (rank, sockets) in sockets {
            let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            for (at, socket) in sockets.iter().enumerate() {
                transport.is_protected |= socket.protection.is_some() || socket.tls.is_some();
                let data = EventData::new_u64(token(rank, at));
                epoll::add(epoll, &socket.socket, data, events).map_err(failed)?;
            }
            let connections = sockets.into_iter().map(|socket| Connection::new(socket, read_ahead)).collect();
            transport.peers[rank] = Some(Peer::new(rank, connections, stripes, read_ahead));
        }
        Ok(transport)
    }

    /// Makes the transport detect which of these peers have hosts that do not answer.
    pub(crate) fn detect_lost_hosts(
        mut self,
        keepalive: Keepalive,
        is_included: impl Fn(&Peer) -> bool,
    ) -> Result<Self> {
        let mut peers = self.peers.iter_mut().flatten().filter(|peer| is_included(peer)).peekable();
        if peers.peek().is_none() {
            return Ok(self);
        }
        peers.for_each(|peer| peer.detect_lost_host(keepalive));
        let start = || {
            let timer = CheckTimer::start(keepalive)?;
            epoll::add(&self.epoll, &timer, EventData::new_u64(CHECK_TIMER), EventFlags::IN)?;
            Ok(timer)
        };
        let failed = |errno: Errno| Error::io("start a timer for a channel", errno.into());
        self.check_timer = Some(start().map_err(failed)?);
        Ok(self)
    }

    /// Checks whether the hosts of all peers answer.
    fn check_hosts(&mut self) {
        self.check_timer.iter().for_each(CheckTimer::clear);
        for peer in self.peers.iter_mut().flatten() {
            self.has_unreported_end |= peer.check_host();
        }
    }

    /// Sends the rest of frames that sockets have accepted in part.
    fn flush(&mut self) {
        if self.is_protected {
            self.peers.iter_mut().flatten().for_each(Peer::flush);
        }
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer> {
        self.abort.check()?;
        let invalid = Invalid::Rank { rank, size: self.group.size() };
        self.peers.get_mut(rank).and_then(Option::as_mut).ok_or_else(|| invalid.into())
    }

    /// Whether a transfer in the interest is known to make progress or fail.
    fn is_ready(&self, interest: &Interest) -> bool {
        let peer = |rank: &usize| self.peers.get(*rank).and_then(Option::as_ref);
        interest.recv().iter().filter_map(peer).any(Peer::can_recv)
            || interest.send().iter().filter_map(peer).any(Peer::can_send)
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
                if event.data.u64() == CHECK_TIMER {
                    self.check_hosts();
                    continue;
                }
                let (rank, socket) = rank_and_socket(event.data.u64());
                if let Some(Some(peer)) = self.peers.get_mut(rank) {
                    self.has_unreported_end |= peer.handle_event(socket, event.flags);
                }
            }
            self.abort.check()?;
            if events.len() < EVENTS_PER_TURN {
                return Ok(());
            }
        }
    }
}

/// The epoll token of a socket: its index and the rank of the peer, in 32 bits each.
const fn token(rank: usize, socket: usize) -> u64 {
    (socket as u64) << 32 | rank as u64
}

const fn rank_and_socket(token: u64) -> (usize, usize) {
    ((token & 0xffff_ffff) as usize, (token >> 32) as usize)
}

impl Transport for TcpTransport {
    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn now_roughly(&mut self) -> Instant {
        self.clock.now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.peer(to)?.try_send(bytes)
    }

    fn released(&self, to: usize) -> u64 {
        self.peers.get(to).and_then(Option::as_ref).map_or(0, Peer::released)
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.peer(from)?.try_recv(into)
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        self.peer(from)?.fill_buf(at_most)
    }

    fn fill_buf_copies(&mut self, _from: usize) -> bool {
        true
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.peer(from)?.consume(bytes)
    }

    /// Does nothing: accepted bytes were copied.
    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.abort.check()?;
        self.flush();
        if self.is_ready(interest) {
            return Ok(Armed::Ready);
        }
        self.poll_events()?;
        self.flush();
        let awake = std::mem::take(&mut self.has_unreported_end) || self.is_ready(interest);
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
            // Shutting down a socket here would end the stream of the parent.
            return;
        }
        self.peers.iter_mut().flatten().for_each(Peer::close);
    }
}

#[cfg(test)]
mod tests;

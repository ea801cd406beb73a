//! Moves the bytes of one lane through one socket, or several, per peer.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    Abort, AbortHandle, Armed, Error, Group, Interest, Invalid, Lent, Process, Result, Transport,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use socket2::Socket;

use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::peer::Peer;
use crate::stripes::Stripes;

/// What epoll calls the abort; sockets go by [`token`].
const ABORT: u64 = u64::MAX;
/// How many events one look at epoll takes.
const EVENTS_AT_ONCE: usize = 64;

/// One socket, or several, to every other member of a group.
///
/// Sockets are watched edge-triggered from the start to the end, so that sending, receiving and arming make no other
/// system call than one read, one write, or one look at epoll each, and allocate nothing but, once per peer, the
/// memory to read ahead.
///
/// Dropping it ends the streams in order, without blocking. What was accepted still arrives, unless the peer was
/// sending at the same time what nobody received. In a child that was made by `fork` it only closes descriptors.
#[derive(Debug)]
pub struct TcpTransport {
    group: Group,
    /// By rank; `None` at this rank.
    peers: Vec<Option<Peer>>,
    epoll: OwnedFd,
    /// Some stream has ended, and nobody was kept from sleeping on it yet.
    unheard_end: bool,
    abort: Arc<Abort>,
    /// The process whose streams these are.
    process: Process,
}

impl TcpTransport {
    /// Takes over the connected sockets of each peer, which are as many as `stripes` says, in their order.
    pub(crate) fn new(
        group: Group,
        sockets: impl IntoIterator<Item = (usize, Vec<Socket>)>,
        stripes: Stripes,
        read_ahead: usize,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the sockets of a lane", errno.into());
        let mut transport = Self {
            group,
            peers: (0..group.size()).map(|_| None).collect(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            unheard_end: false,
            abort: Arc::new(Abort::new()?),
            process: Process::current(),
        };
        let (epoll, abort) = (&transport.epoll, &*transport.abort);
        epoll::add(epoll, abort, EventData::new_u64(ABORT), EventFlags::IN).map_err(failed)?;
        let read_ahead = read_ahead.max(TcpConfig::READ_AHEAD_MIN);
        for (rank, sockets) in sockets {
            let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            for (at, socket) in sockets.iter().enumerate() {
                epoll::add(epoll, socket, EventData::new_u64(token(rank, at)), events).map_err(failed)?;
            }
            let connections = sockets.into_iter().map(Connection::new).collect();
            transport.peers[rank] = Some(Peer::new(rank, connections, stripes, read_ahead));
        }
        Ok(transport)
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer> {
        self.abort.check()?;
        let invalid = Invalid::Rank { rank, size: self.group.size() };
        self.peers.get_mut(rank).and_then(Option::as_mut).ok_or_else(|| invalid.into())
    }

    /// Whether something in the interest can move or fail, as far as is known.
    fn is_ready(&self, interest: &Interest) -> bool {
        let peer = |rank: &usize| self.peers.get(*rank).and_then(Option::as_ref);
        interest.recv().iter().filter_map(peer).any(Peer::can_recv)
            || interest.send().iter().filter_map(peer).any(Peer::can_send)
    }

    /// Takes note of everything that epoll has to say.
    fn look(&mut self) -> Result<()> {
        loop {
            let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
            let events = match epoll::wait(&self.epoll, &mut room, Some(&Timespec::default())) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("look at the sockets of a lane", errno.into())),
            };
            for event in &*events {
                let (rank, socket) = rank_and_socket(event.data.u64());
                if let Some(Some(peer)) = self.peers.get_mut(rank) {
                    self.unheard_end |= peer.note(socket, event.flags);
                }
            }
            self.abort.check()?;
            if events.len() < EVENTS_AT_ONCE {
                return Ok(());
            }
        }
    }
}

/// What epoll calls a socket: its number and the peer's rank, of which each has 32 bits to spare.
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

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.peer(to)?.try_send(bytes)
    }

    fn released(&self, to: usize) -> u64 {
        self.peers.get(to).and_then(Option::as_ref).map_or(0, Peer::accepted)
    }

    /// What is sent is copied, wherever it lies.
    fn expose(&mut self, _memory: &[&[u8]]) {}

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.peer(from)?.try_recv(into)
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        self.peer(from)?.lend(at_most)
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.peer(from)?.consume(bytes)
    }

    /// Nothing to take back: what was accepted was copied.
    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.abort.check()?;
        if self.is_ready(interest) {
            return Ok(Armed::Ready);
        }
        self.look()?;
        let awake = std::mem::take(&mut self.unheard_end) || self.is_ready(interest);
        Ok(if awake { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Abort>::clone(&self.abort)
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // To end a stream here would end it for the parent.
            return;
        }
        self.peers.iter_mut().flatten().for_each(Peer::close);
    }
}

#[cfg(test)]
mod tests;

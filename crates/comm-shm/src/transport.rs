//! Moves the bytes of one lane through rings of shared memory.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{Abort, AbortHandle, Armed, Error, Group, Interest, Invalid, Lent, Result, Transport};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::clock::RoughClock;
use crate::doze::settle;
use crate::exposed::Exposed;
use crate::lender::Lending;
use crate::peer::{Connection, Peer};

/// What epoll calls the abort; sockets go by their rank.
const ABORT: u64 = u64::MAX;
/// What epoll calls the process of rank 0; those of other ranks follow.
const PROCESS: u64 = 1 << 32;
/// How many events one look at epoll takes.
const EVENTS_AT_ONCE: usize = 64;
/// After so many attempts one looks at the sockets, so that who never sleeps hears of a death too: because it only ever tries again, or
/// because others keep it busy.
const ATTEMPTS_MAX: u32 = 4096;

/// Two rings of shared memory with every other member of a group, one per direction, and a socket that shows whether
/// it is alive.
///
/// While nobody sleeps, bytes move without any system call. Who sleeps says so in shared memory, and is woken through
/// its socket.
///
/// On lanes for collectives, a large piece that lies in memory from [`Lanes::allocate`](comm_core::Lanes::allocate) is
/// not copied into the ring: the peer is told where it lies, and reads it there. It is released when the peer has read
/// it to the end. Memory of a process that was killed, or has dropped it, remains readable until then. The peer's
/// stream ends with [`Loss::Io`](comm_core::Loss::Io) if it is taken back with [`Transport::revoke`].
///
/// On the same lanes, large pieces of memory that was exposed with [`Transport::expose`] are read where they lie, if the peer may
/// read the memory of this process. They are released likewise; but they are lost with the process if that ends.
///
/// Nothing is allocated after opening, except for what is remembered of memory when a peer is first told of it, and 64 KiB for
/// each peer whose memory is combined without being mapped.
///
/// What arrives from a peer's memory is bounded, never believed: a peer that publishes an impossible position is lost
/// with [`Loss::Garbage`](comm_core::Loss::Garbage). A peer that dies, however it does, closes its sockets; what it
/// had sent is still delivered. Its end shows also while a child that it forked holds copies of them, from Linux 5.3 on and
/// if both are in one process namespace. One that is merely stopped is waited for.
///
/// Dropping it ends the streams in order: the others receive what was accepted, then
/// [`Loss::Closed`](comm_core::Loss::Closed).
#[derive(Debug)]
pub struct SharedMemoryTransport {
    group: Group,
    clock: RoughClock,
    /// By rank; `None` at this rank, and where no memory can be shared.
    peers: Vec<Option<Peer>>,
    epoll: OwnedFd,
    /// Peers in the interest with which the transport was armed last, unless it was used since.
    lying: Interest,
    exposed: Exposed,
    attempts: u32,
    /// Some stream has ended, and nobody was kept from sleeping on it yet.
    unheard_end: bool,
    abort: Arc<Abort>,
}

impl SharedMemoryTransport {
    /// Takes over connections, one per peer. `lending` says what is lent to them, if anything is.
    pub(crate) fn new(
        group: Group,
        connections: impl IntoIterator<Item = (usize, Connection)>,
        lending: Option<&Lending>,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the sockets of a lane", errno.into());
        let mut transport = Self {
            group,
            clock: RoughClock::new(),
            peers: (0..group.size()).map(|_| None).collect(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            lying: Interest::with_room(group.size()),
            exposed: Exposed::default(),
            attempts: 0,
            unheard_end: false,
            abort: Arc::new(Abort::new()?),
        };
        let (epoll, abort) = (&transport.epoll, &*transport.abort);
        epoll::add(epoll, abort, EventData::new_u64(ABORT), EventFlags::IN).map_err(failed)?;
        for (rank, connection) in connections {
            let events = EventFlags::IN | EventFlags::RDHUP;
            epoll::add(epoll, &connection.socket, EventData::new_u64(rank as u64), events).map_err(failed)?;
            if let Some(process) = &connection.process {
                let token = EventData::new_u64(PROCESS + rank as u64);
                epoll::add(epoll, process, token, EventFlags::IN).map_err(failed)?;
            }
            transport.peers[rank] = Some(Peer::new(rank, connection, lending.cloned()));
        }
        Ok(transport)
    }

    #[inline]
    fn peer(&mut self, rank: usize) -> Result<&mut Peer> {
        self.abort.check()?;
        if !self.lying.recv().is_empty() || !self.lying.send().is_empty() {
            self.get_up();
        }
        let group = self.group;
        self.peers.get_mut(rank).and_then(Option::as_mut).ok_or_else(|| stranger(group, rank))
    }

    /// Nobody needs to ring for who is awake.
    #[cold]
    fn get_up(&mut self) {
        for rank in self.lying.recv().iter().chain(self.lying.send()) {
            if let Some(Some(peer)) = self.peers.get(*rank) {
                peer.get_up();
            }
        }
        self.lying.clear();
    }

    /// Takes note of an attempt to move something.
    #[inline]
    fn tried(&mut self) -> Result<()> {
        self.attempts += 1;
        if self.attempts < ATTEMPTS_MAX {
            return Ok(());
        }
        self.attempts = 0;
        self.look()
    }

    /// Whether something in the interest can move or fail.
    fn is_ready(&mut self, interest: &Interest) -> bool {
        let peers = &mut self.peers;
        let mut ready = |ranks: &[usize], can: fn(&mut Peer) -> bool| {
            ranks.iter().any(|rank| peers.get_mut(*rank).and_then(Option::as_mut).is_some_and(can))
        };
        ready(interest.recv(), Peer::can_recv) || ready(interest.send(), Peer::can_send)
    }

    /// Says that this side is about to sleep.
    fn lie_down(&mut self, interest: &Interest) {
        self.peers.iter_mut().flatten().for_each(Peer::tidy_up);
        for &rank in interest.recv() {
            if let Some(Some(peer)) = self.peers.get(rank) {
                peer.lie_down_to_recv();
                self.lying.add_recv(rank);
            }
        }
        for &rank in interest.send() {
            if let Some(Some(peer)) = self.peers.get(rank) {
                peer.lie_down_to_send();
                self.lying.add_send(rank);
            }
        }
    }

    /// Takes note of who rang and who is gone.
    fn look(&mut self) -> Result<()> {
        loop {
            let mut room = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
            let events = match epoll::wait(&self.epoll, &mut room, Some(&Timespec::default())) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("look at the sockets of a lane", errno.into())),
            };
            for event in &*events {
                self.note(event.data.u64(), event.flags)?;
            }
            self.abort.check()?;
            if events.len() < EVENTS_AT_ONCE {
                return Ok(());
            }
        }
    }

    fn note(&mut self, token: u64, events: EventFlags) -> Result<()> {
        let is_process = token != ABORT && token >= PROCESS;
        let rank = if is_process { token - PROCESS } else { token };
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return Ok(()) };
        if !is_process && !events.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR) {
            peer.hear();
            return Ok(());
        }
        peer.hang_up();
        self.unheard_end = true;
        // It would keep everybody awake for ever.
        let ended = peer.process().filter(|_| is_process).map_or(peer.as_fd(), AsFd::as_fd);
        epoll::delete(&self.epoll, ended).map_err(|errno| Error::io("forget a peer", errno.into()))
    }
}

#[cold]
fn stranger(group: Group, rank: usize) -> Error {
    Invalid::Rank { rank, size: group.size() }.into()
}

impl Transport for SharedMemoryTransport {
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
        self.peer(to)?;
        let Self { peers, exposed, .. } = self;
        let Some(Some(peer)) = peers.get_mut(to) else { return Err(stranger(self.group, to)) };
        let sent = peer.try_send(bytes, exposed)?;
        self.tried()?;
        Ok(sent)
    }

    fn released(&self, to: usize) -> u64 {
        self.peers.get(to).and_then(Option::as_ref).map_or(0, Peer::released)
    }

    fn expose(&mut self, memory: &[&[u8]]) {
        self.exposed.set(memory);
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        let received = self.peer(from)?.try_recv(into)?;
        self.tried()?;
        Ok(received)
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        let lent = self.peer(from)?.prepare(at_most)?;
        self.tried()?;
        let peer = self.peers.get(from).and_then(Option::as_ref);
        peer.map(|peer| peer.lend(lent)).ok_or_else(|| stranger(self.group, from))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.peer(from)?.consume(bytes)
    }

    fn revoke(&mut self) {
        self.peers.iter_mut().flatten().for_each(Peer::revoke);
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.abort.check()?;
        self.get_up();
        if self.is_ready(interest) {
            return Ok(Armed::Ready);
        }
        // Bells are silenced before the last look at what they rang for.
        self.look()?;
        self.lie_down(interest);
        settle().map_err(|error| Error::io("have other ranks execute a fence", error))?;
        let awake = std::mem::take(&mut self.unheard_end) || self.is_ready(interest);
        if awake {
            self.get_up();
        }
        Ok(if awake { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Abort>::clone(&self.abort)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

//! Sockets between the processes of a run, for code that uses descriptors.
//!
//! A process has one end of a pair of local sockets, and reads, writes and polls it as it does in
//! reality. The network has the other end. What a process writes there is read whenever a thread
//! passes its turn, travels in virtual time, and is written to the pair of the other side.

mod connect;
mod process;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::world::World;
use segment::{Segment, SegmentContent};

/// The address of rank 0: 10.0.0.1.
const FIRST_ADDRESS: u32 = 0x0a00_0001;
/// The longest time for which bytes are on their way after the last process has ended.
const SETTLING_MAX: Duration = Duration::from_secs(60);
/// The longest time, in reality, for which another thread may be starting a process. Until that
/// executes its program, it has copies of all descriptors, and a socket that was closed looks open.
const STARTING_MAX: Duration = Duration::from_secs(2);
/// The bit of the token of a listener.
const LISTENER: u64 = 1 << 32;

/// All sockets of a run.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    sockets: Vec<NetworkSocket>,
    listeners: Vec<Listener>,
    /// The tokens of the ends that processes have, by their inodes, which copies of a descriptor
    /// share.
    tokens: BTreeMap<u64, u64>,
    /// The ends of processes that have died, whose threads find nothing until they sleep.
    of_dead: Vec<UnixStream>,
    /// Reports the actions of processes on their ends.
    epoll: Option<OwnedFd>,
}

/// One side of a connection.
#[derive(Debug)]
struct NetworkSocket {
    rank: usize,
    address: SocketAddr,
    /// The end of the network, until it is closed.
    end: Option<UnixStream>,
    /// The other side, once there is one.
    peer: Option<usize>,
    /// The reason for which the connection cannot be used.
    error: Option<ErrorKind>,
    /// The bytes that keep the process's end from being writable until it is connected.
    filler: usize,
    segments: VecDeque<Segment>,
    /// The number of bytes that this side has sent and the other one has not accepted.
    in_flight: usize,
    busy_until: Duration,
    /// Whether the process has more to send than may be in flight.
    has_unread: bool,
    /// Whether the process sends no more.
    has_ended: bool,
    /// The bytes that have arrived for the process.
    arrived: VecDeque<u8>,
    peer_end: PeerEnd,
}

/// The state of the end of the stream from the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerEnd {
    None,
    Arrived,
    /// The process can read it.
    Delivered,
}

/// A process that accepts connections at an address.
#[derive(Debug)]
struct Listener {
    rank: usize,
    address: SocketAddr,
    /// The end of the network, until the listener is closed. It holds one byte per connection.
    end: Option<UnixStream>,
    /// The connections that were not accepted: the process's ends, and the addresses that
    /// connected.
    queue: VecDeque<(OwnedFd, SocketAddr)>,
    /// Whether its host answers nothing.
    is_silent: bool,
}

/// Returns the address of a process.
pub(super) fn address_of(rank: usize) -> IpAddr {
    Ipv4Addr::from_bits(FIRST_ADDRESS + rank as u32).into()
}

/// Returns the rank with this [`address`](super::VirtualClock::address), if one can have it.
#[must_use]
pub fn rank_at(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else { return None };
    address.to_bits().checked_sub(FIRST_ADDRESS).map(|rank| rank as usize)
}

fn inode(descriptor: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(descriptor)?.st_ino)
}

impl Sockets {
    /// Returns the number of connections that processes have not closed.
    pub(super) fn open(&self) -> usize {
        self.sockets.iter().filter(|socket| socket.end.is_some() && !socket.has_ended).count()
    }

    fn epoll(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.epoll.is_none() {
            self.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        self.epoll.as_ref().map(AsFd::as_fd).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Creates a pair, and watches the end of the network, which it returns first.
    fn pair(&mut self, token: u64) -> io::Result<(UnixStream, UnixStream)> {
        let (end, own) = UnixStream::pair()?;
        end.set_nonblocking(true)?;
        own.set_nonblocking(true)?;
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(self.epoll()?, &end, EventData::new_u64(token), events)?;
        self.tokens.insert(inode(own.as_fd())?, token);
        Ok((end, own))
    }

    fn is_in_use(&self, address: SocketAddr) -> bool {
        self.listeners.iter().any(|listener| listener.end.is_some() && listener.address == address)
    }

    fn listener_at(&self, address: SocketAddr) -> Option<usize> {
        self.listeners.iter().rposition(|listener| {
            listener.address == address && (listener.end.is_some() || listener.is_silent)
        })
    }

    pub(super) fn local_address(&self, descriptor: BorrowedFd<'_>) -> Option<SocketAddr> {
        let token = *self.tokens.get(&inode(descriptor).ok()?)?;
        Some(match token & LISTENER {
            0 => self.sockets[token as usize].address,
            _ => self.listeners[(token & !LISTENER) as usize].address,
        })
    }

    /// Returns the reason why a connection could not be made, once.
    pub(super) fn take_error(&mut self, descriptor: BorrowedFd<'_>) -> Option<io::Error> {
        let token = *self.tokens.get(&inode(descriptor).ok()?)?;
        self.sockets.get_mut(token as usize)?.error.take().map(io::Error::from)
    }

    /// Returns the sides of the connections between two ranks.
    fn between(&self, a: usize, b: usize) -> Vec<usize> {
        let is_between = |&id: &usize| {
            let socket = &self.sockets[id];
            let peer = socket.peer.map(|peer| self.sockets[peer].rank);
            peer.is_some_and(|peer| [(a, b), (b, a)].contains(&(socket.rank, peer)))
        };
        (0..self.sockets.len()).filter(is_between).collect()
    }
}

impl World {
    /// Lets time pass until nothing is on its way to sockets that processes have closed. Returns
    /// the number of those that they have not.
    pub(super) fn settle_sockets(&mut self) -> usize {
        let until = self.now() + SETTLING_MAX;
        let began = Instant::now();
        loop {
            self.pump_sockets();
            while self.sockets.open() > 0 && self.next_event().is_some_and(|next| next < until) {
                self.advance(None);
                self.pump_sockets();
            }
            if self.sockets.open() == 0 || began.elapsed() > STARTING_MAX {
                return self.sockets.open();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes a side whose connection cannot be used.
    pub(super) fn close_socket(&mut self, id: usize, error: ErrorKind) {
        let socket = &mut self.sockets.sockets[id];
        (socket.end, socket.error, socket.has_ended) = (None, Some(error), true);
        let rank = socket.rank;
        self.wake_system(rank);
    }

    /// Ends the sockets of a rank that has died. If its host has lost its power, the others notice
    /// nothing.
    pub(in crate::network) fn kill_sockets(&mut self, rank: usize, is_silent: bool) {
        let now = self.now();
        for listener in self.sockets.listeners.iter_mut().filter(|listener| listener.rank == rank) {
            if let Some(end) = listener.end.take() {
                listener.is_silent = is_silent;
                self.sockets.of_dead.push(end);
            }
        }
        for id in 0..self.sockets.sockets.len() {
            let socket = &mut self.sockets.sockets[id];
            if socket.rank != rank || socket.end.is_none() {
                continue;
            }
            socket.segments.retain(|segment| segment.departs <= now);
            socket.busy_until = socket.busy_until.min(now);
            self.sockets.of_dead.extend(socket.end.take());
            if !is_silent && !std::mem::replace(&mut socket.has_ended, true) {
                self.send_segment(id, SegmentContent::End);
            }
        }
    }

    /// Breaks the connections between two ranks.
    pub(in crate::network) fn break_sockets(&mut self, a: usize, b: usize, error: ErrorKind) {
        for id in self.sockets.between(a, b) {
            self.sockets.sockets[id].segments.clear();
            self.close_socket(id, error);
        }
    }
}

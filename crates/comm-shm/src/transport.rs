//! Moves the bytes of one channel through rings of shared memory.

mod neighbours;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    AbortHandle, AbortSignal, Armed, Error, Group, Interest, Invalid, RecvBuf, RegistrationSizes, Result,
    Transport,
};
use comm_mesh::{CoarseClock, Registration};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::cache::last_level_cache_bytes;
use crate::exporter::ExportConfig;
use crate::mesh::SharedMemoryProtocol;
use crate::peer::{Connection, Peer};
use crate::registered::RegisteredMemory;
use crate::wakeup;
use crate::window::OwnWindow;
use neighbours::Neighbours;

/// The epoll token of the abort signal. The token of a socket is its rank.
const ABORT: u64 = u64::MAX;
/// The epoll token of connections that are made on demand.
const MADE: u64 = u64::MAX - 1;
/// The epoll token of the process of rank 0; those of other ranks follow.
const PROCESS: u64 = 1 << 32;
/// The maximum number of events that are handled before the abort signal is checked.
const EVENTS_PER_TURN: usize = 64;
/// The number of attempts between checks of the sockets, so that even a rank that never sleeps
/// notices the exit of a peer.
const ATTEMPTS_MAX: u32 = 4096;

/// Two rings of shared memory with every other member of a group, one per direction, and a socket
/// that shows whether it is alive. In a large group, only with those to which something was sent or
/// from which something was received.
///
/// While no rank sleeps, bytes move without a system call. A rank sets a flag in shared memory
/// before it sleeps, and is woken through its socket.
///
/// On channels for collectives and messages, a large piece that lies in memory from
/// [`Fabric::allocate`](comm_core::Fabric::allocate) is not copied into the ring: the peer gets a
/// descriptor of it, and reads it in place. It is released when the peer has read it to the end. It
/// remains readable until then, even if its process is killed or drops it. If it is revoked with
/// [`Transport::revoke`], the peer's stream ends with [`Loss::Io`](comm_core::Loss::Io).
///
/// On channels for collectives, large pieces of memory that was registered with
/// [`Transport::register`] are read in place by cross-memory attach, if the system lets the peer
/// read the memory of this process. They are released likewise, but are lost when this process
/// exits.
///
/// Nothing is allocated after opening, except a record of each region when it is first exported to
/// a peer, and 64 KiB for each peer whose memory is reduced by cross-memory attach.
///
/// Everything that a peer publishes is validated: a peer that publishes an invalid position is lost
/// with [`Loss::Protocol`](comm_core::Loss::Protocol). The sockets of a peer close however it
/// exits, and the bytes that it had sent are still delivered. On Linux 5.3 and later, if both are
/// in one PID namespace, its exit is noticed even while a child that it forked holds copies of the
/// sockets. A stopped peer is waited for.
///
/// Dropping the transport ends its streams in an orderly way: the other ranks receive all accepted
/// bytes, then [`Loss::Closed`](comm_core::Loss::Closed).
#[derive(Debug)]
pub struct SharedMemoryTransport {
    group: Group,
    clock: CoarseClock,
    /// By rank; `None` for this rank, for those that share no memory with it, and for those that
    /// are not connected.
    peers: Vec<Option<Peer>>,
    neighbours: Neighbours,
    /// Makes connections on demand, if some are.
    on_demand: Option<Registration<SharedMemoryProtocol>>,
    /// `None` if everything is copied.
    export: Option<ExportConfig>,
    epoll: OwnedFd,
    /// The interest with which the transport was last armed, empty once it is used again.
    armed: Interest,
    registered: RegisteredMemory,
    /// The window of the current call.
    window: Option<OwnWindow>,
    /// The number of attempts to move bytes before [`attend`](Self::attend) does more than count;
    /// zero when the transport is armed.
    attempts_left: u32,
    /// Whether a stream has opened or ended since the transport was last armed.
    has_unreported_change: bool,
    abort: Arc<AbortSignal>,
}

impl SharedMemoryTransport {
    /// The sizes for which reading registered memory in place was measured to be faster. Smaller
    /// messages of a root are copied through a ring in less time, and for larger ones the two
    /// copies overlap.
    pub const REGISTRATION_SIZES: RegistrationSizes =
        RegistrationSizes::any().reduced_min(4 << 20).root_min(128 << 10).root_max(512 << 10);

    /// Creates a transport from connections, one per peer. Without `export`, everything is copied.
    pub(crate) fn new(
        group: Group,
        connections: impl IntoIterator<Item = (usize, Connection)>,
        on_demand: Option<Registration<SharedMemoryProtocol>>,
        export: Option<ExportConfig>,
    ) -> Result<Self> {
        let failed = |errno: Errno| Error::io("watch the sockets of a channel", errno.into());
        let mut transport = Self {
            group,
            clock: CoarseClock::default(),
            peers: (0..group.size()).map(|_| None).collect(),
            neighbours: Neighbours::new(group.size()),
            on_demand,
            export,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            armed: Interest::with_capacity(group.size()),
            registered: RegisteredMemory::default(),
            window: None,
            attempts_left: ATTEMPTS_MAX,
            has_unreported_change: false,
            abort: Arc::new(AbortSignal::new()?),
        };
        let (epoll, abort) = (&transport.epoll, &*transport.abort);
        epoll::add(epoll, abort, EventData::new_u64(ABORT), EventFlags::IN).map_err(failed)?;
        if let Some(on_demand) = &transport.on_demand {
            // A thread watches the listener.
            let [_, made] = on_demand.descriptors();
            epoll::add(epoll, made, EventData::new_u64(MADE), EventFlags::IN).map_err(failed)?;
        }
        for (rank, connection) in connections {
            transport.add_peer(rank, connection)?;
        }
        Ok(transport)
    }

    fn add_peer(&mut self, rank: usize, connection: Connection) -> Result<()> {
        let failed = |errno: Errno| Error::io("watch the socket of a rank", errno.into());
        let (epoll, events) = (&self.epoll, EventFlags::IN | EventFlags::RDHUP);
        epoll::add(epoll, &connection.socket, EventData::new_u64(rank as u64), events).map_err(failed)?;
        if let Some(process) = &connection.process {
            let token = EventData::new_u64(PROCESS + rank as u64);
            epoll::add(epoll, process, token, EventFlags::IN).map_err(failed)?;
        }
        self.peers[rank] = Some(Peer::new(rank, connection, self.export.clone()));
        Ok(())
    }

    /// Whether a rank is connected. If it is not, its connection is requested, if it is to be made
    /// on demand.
    #[inline]
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
        let is_pending = self.on_demand.as_mut().map_or(Ok(false), |on_demand| on_demand.request(rank))?;
        if is_pending { Ok(false) } else { Err(not_a_peer(self.group, rank)) }
    }

    /// Takes the connections that were made on demand.
    fn take_made(&mut self) -> Result<()> {
        for (rank, made) in self.on_demand.as_mut().map_or(Vec::new(), Registration::take_made) {
            self.has_unreported_change = true;
            if let Some(connection) = made {
                self.add_peer(rank, connection)?;
            }
        }
        Ok(())
    }

    /// Closes the window. If a peer is writing into it, or was when it was stopped, its pages are
    /// replaced.
    fn revoke_window(&mut self) {
        let Some(window) = self.window.take() else { return };
        let mut is_written = false;
        for peer in self.peers.iter_mut().flatten() {
            is_written |= peer.close_window();
        }
        let Err(error) = (if is_written { window.detach() } else { Ok(()) }) else { return };
        tracing::warn!(%error, "cannot take a buffer back from ranks that write into it: waiting for them");
        while self.peers.iter().flatten().any(Peer::is_putting) {
            std::thread::yield_now();
            // Shows whether they have exited. An error ends nothing here.
            let _ = self.poll_events();
        }
    }

    /// Returns a peer to or from which bytes are about to move; `None` if it is not connected yet.
    #[inline(always)]
    fn peer(&mut self, rank: usize) -> Result<Option<&mut Peer>> {
        self.attend()?;
        if self.is_connected(rank)? { Ok(self.peers[rank].as_mut()) } else { Ok(None) }
    }

    /// Counts an attempt to move bytes. The first one after the transport was armed clears the
    /// wakeup flags, and one of [`ATTEMPTS_MAX`] checks the sockets.
    #[inline]
    fn attend(&mut self) -> Result<()> {
        self.abort.check()?;
        match self.attempts_left.checked_sub(1) {
            Some(left) => self.attempts_left = left,
            None => self.attend_to_flags_and_sockets()?,
        }
        Ok(())
    }

    #[cold]
    fn attend_to_flags_and_sockets(&mut self) -> Result<()> {
        self.attempts_left = ATTEMPTS_MAX;
        if self.armed.recv().is_empty() && self.armed.send().is_empty() {
            return self.poll_events();
        }
        // The sockets were checked when the transport was armed.
        self.clear_wakeups();
        Ok(())
    }

    /// Clears the wakeup flags: this side is awake.
    #[cold]
    fn clear_wakeups(&mut self) {
        for rank in self.armed.recv().iter().chain(self.armed.send()) {
            if let Some(Some(peer)) = self.peers.get(*rank) {
                peer.clear_wakeup();
            }
        }
        self.armed.clear();
    }

    /// Whether a transfer in the interest can make progress or fail.
    fn is_ready(&mut self, interest: &Interest) -> bool {
        let Self { peers, on_demand, .. } = self;
        let mut ready = |ranks: &[usize], can: fn(&mut Peer) -> bool| {
            ranks.iter().any(|rank| match peers.get_mut(*rank) {
                Some(Some(peer)) => can(peer),
                _ => on_demand.as_ref().is_some_and(|on_demand| on_demand.has_failed(*rank)),
            })
        };
        ready(interest.recv(), Peer::can_recv) || ready(interest.send(), Peer::can_send)
    }

    /// Sets the wakeup flags before this side sleeps.
    fn prepare_sleep(&mut self, interest: &Interest) {
        self.peers.iter_mut().flatten().for_each(Peer::evict_regions);
        self.attempts_left = 0;
        for &rank in interest.recv() {
            if let Some(Some(peer)) = self.peers.get(rank) {
                peer.prepare_sleep_for_recv();
                self.armed.add_recv(rank);
            }
        }
        for &rank in interest.send() {
            if let Some(Some(peer)) = self.peers.get(rank) {
                peer.prepare_sleep_for_send();
                self.armed.add_send(rank);
            }
        }
    }

    /// Shows all peers on which processor this thread is, and returns it.
    fn show_processor(&self) -> usize {
        let processor = rustix::thread::sched_getcpu();
        self.peers.iter().flatten().for_each(|peer| peer.show_processor(processor));
        processor
    }

    /// Handles notifications, and peers that have exited.
    fn poll_events(&mut self) -> Result<()> {
        self.show_processor();
        loop {
            let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_PER_TURN];
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default())) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("poll the sockets of a channel", errno.into())),
            };
            for event in &*events {
                self.handle_event(event.data.u64(), event.flags)?;
            }
            self.abort.check()?;
            if events.len() < EVENTS_PER_TURN {
                return Ok(());
            }
        }
    }

    fn handle_event(&mut self, token: u64, events: EventFlags) -> Result<()> {
        if token == MADE {
            self.on_demand.iter().for_each(Registration::clear);
            return self.take_made();
        }
        let is_process = token != ABORT && token >= PROCESS;
        let rank = if is_process { token - PROCESS } else { token };
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return Ok(()) };
        if !is_process && !events.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR) {
            peer.recv_packets();
            return Ok(());
        }
        peer.close();
        self.has_unreported_change = true;
        // It would stay readable and keep this rank from sleeping.
        let ended = peer.process().filter(|_| is_process).map_or(peer.as_fd(), AsFd::as_fd);
        epoll::delete(&self.epoll, ended).map_err(|errno| Error::io("stop watching a peer", errno.into()))
    }
}

#[cold]
fn not_a_peer(group: Group, rank: usize) -> Error {
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

    fn is_open(&self, peer: usize) -> bool {
        matches!(self.peers.get(peer), Some(Some(_)))
    }

    fn is_full_mesh(&self) -> bool {
        self.on_demand.is_none()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.attend()?;
        if let Some(Some(peer)) = self.peers.get_mut(to) {
            return peer.try_send(bytes, &mut self.registered);
        }
        if self.request(to)? { self.try_send(to, bytes) } else { Ok(0) }
    }

    fn released(&self, to: usize) -> u64 {
        self.peers.get(to).and_then(Option::as_ref).map_or(0, Peer::released)
    }

    fn register(&mut self, memory: &[&[u8]]) {
        self.registered.set(memory);
    }

    fn is_window(&self, memory: &[u8]) -> bool {
        self.export.as_ref().is_some_and(|export| export.regions.find_window(memory, 0).is_some())
    }

    fn open_window(&mut self, memory: &mut [u8], call: u64) {
        self.window = self.export.as_ref().and_then(|export| export.regions.find_window(memory, call));
        if let Some(window) = &self.window {
            self.peers.iter_mut().flatten().for_each(|peer| peer.open_window(window));
        }
    }

    fn close_window(&mut self) {
        if self.window.take().is_some() {
            self.peers.iter_mut().flatten().for_each(Peer::forget_window);
        }
    }

    fn try_put(&mut self, to: usize, call: u64, offset: usize, bytes: &[u8]) -> Result<Option<usize>> {
        self.attend()?;
        if let Some(Some(peer)) = self.peers.get_mut(to) {
            return peer.try_put(call, offset, bytes, &mut self.registered);
        }
        if self.request(to)? { self.try_put(to, call, offset, bytes) } else { Ok(None) }
    }

    fn registration_sizes(&self) -> RegistrationSizes {
        Self::REGISTRATION_SIZES
    }

    fn is_read_in_place(&self, memory: &[u8]) -> bool {
        self.export.as_ref().is_some_and(|export| export.regions.find(memory).is_some())
    }

    fn cached_bytes(&self) -> usize {
        let connected = 1 + self.peers.iter().flatten().count();
        // All others may be connected later.
        let ranks = if self.on_demand.is_some() { self.group.size() } else { connected };
        // Half of the cache is for what is sent.
        last_level_cache_bytes() / 2 / ranks
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.peer(from)?.map_or(Ok(0), |peer| peer.try_recv(into))
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        let Some(peer) = self.peer(from)? else { return Ok(RecvBuf::from_slice(&[])) };
        let filled = peer.prepare(at_most)?;
        Ok(peer.fill_buf(filled))
    }

    fn fill_buf_copies(&mut self, from: usize) -> bool {
        self.peer(from).is_ok_and(|peer| peer.is_some_and(Peer::fill_buf_copies))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.abort.check()?;
        match self.peers.get_mut(from) {
            Some(Some(peer)) => peer.consume(bytes),
            _ if bytes == 0 => Ok(()),
            _ => Err(not_a_peer(self.group, from)),
        }
    }

    fn revoke(&mut self) {
        self.peers.iter_mut().flatten().for_each(Peer::revoke);
        self.revoke_window();
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.abort.check()?;
        self.clear_wakeups();
        if self.is_ready(interest) {
            return Ok(Armed::Ready);
        }
        // Notifications are received before the last check of what they announce.
        self.poll_events()?;
        self.prepare_sleep(interest);
        wakeup::fence().map_err(|error| Error::io("execute a memory barrier on all ranks", error))?;
        let awake = std::mem::take(&mut self.has_unreported_change) || self.is_ready(interest);
        if awake {
            self.clear_wakeups();
            self.attempts_left = ATTEMPTS_MAX;
        }
        Ok(if awake { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn peers_run_elsewhere(&self) -> bool {
        let processor = self.show_processor();
        !self.peers.iter().flatten().any(|peer| peer.may_be_on(processor))
    }

    fn run_now(&self, peers: &[usize]) -> bool {
        if self.neighbours.is_look_due() {
            let processor = self.show_processor();
            let is_here = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.may_be_on(processor));
            self.neighbours.record(self.peers.iter().map(is_here));
        }
        self.neighbours.run_now(peers)
    }

    fn sends_by_system_call(&self, _to: usize) -> bool {
        false
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<AbortSignal>::clone(&self.abort)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

//! The trait of byte streams between the members of a group.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Error, Group, RecvBuf, Result, Waiter, simulation, wait};

/// Ordered, reliable byte streams to and from every other member of a group. No call blocks.
///
/// A transport has no notion of messages: it moves bytes, and reports when more can be moved. One
/// thread at a time uses it; only its [`AbortHandle`] is shared.
///
/// Positions count the bytes sent to or received from one peer since the transport was opened.
///
/// # Errors
/// Every method that returns an error returns [`Error::PeerLost`] naming the peer if its stream
/// ended or broke, and the error given to [`AbortHandle::abort`] after an abort. After an error the
/// stream to that peer stays broken; streams to others continue. Bytes that arrived before a stream
/// ended are delivered first.
pub trait Transport: Send {
    /// Returns the group whose members the streams connect.
    fn group(&self) -> Group;

    /// Returns the time: real in a real transport, virtual in a simulation. Code above a transport
    /// never reads a clock.
    fn now(&self) -> Instant;

    /// Returns the time to within some milliseconds, for callers that read it so often that it must
    /// cost almost nothing.
    fn now_roughly(&mut self) -> Instant {
        self.now()
    }

    /// Returns whether there is a stream to a peer. The default is `true`. A transport that
    /// connects peers when a stream is first used returns `false` before that: nothing was sent to
    /// the peer or received from it, and nothing has arrived as of the last [`Transport::arm`]. A
    /// call of [`Transport::try_send`], [`Transport::try_recv`] or [`Transport::fill_buf`] for that
    /// peer then begins to connect it, and moves nothing until it is connected.
    fn is_open(&self, peer: usize) -> bool {
        let _ = peer;
        true
    }

    /// Returns the first peer from this rank on to which there is a stream. The default looks at
    /// one peer after the other.
    fn next_open(&self, from: usize) -> Option<usize> {
        let own = self.group().rank();
        (from..self.group().size()).find(|&peer| peer != own && self.is_open(peer))
    }

    /// Returns whether every rank of the channel has a stream to every other one from the start,
    /// which is equal on all ranks. The default is `true`. Otherwise [`Transport::is_open`] tells
    /// to which ranks there are streams.
    fn is_full_mesh(&self) -> bool {
        true
    }

    /// Sends as many bytes as can be sent now, gathered from `bytes` in order. Returns the number
    /// of bytes that were accepted, which may be zero.
    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize>;

    /// Returns the position in the stream to a peer below which the sender's memory is no longer
    /// read. A transport that copies releases bytes as soon as it accepts them; one whose receivers
    /// read the sender's memory releases bytes when the receiver has consumed them. Until then the
    /// memory must not change.
    fn released(&self, to: usize) -> u64;

    /// Registers memory that receivers on this host may read in place from now on, and replaces all
    /// memory registered before. Initially none is registered. Registration is only a permission: a
    /// transport that copies everything ignores it, and others may use only the first few pieces.
    /// Bytes sent from the memory must not change until they are [`Transport::released`].
    fn register(&mut self, memory: &[&[u8]]) {
        let _ = memory;
    }

    /// Returns the sizes for which reading registered memory in place is faster than copying.
    fn registration_sizes(&self) -> RegistrationSizes {
        RegistrationSizes::any()
    }

    /// Returns whether peers on this host can map this memory, and read large pieces in place. The
    /// default is `false`.
    fn is_read_in_place(&self, memory: &[u8]) -> bool {
        let _ = memory;
        false
    }

    /// Returns whether peers on this host can write into this memory if it is a window. The default
    /// is `false`.
    fn is_window(&self, memory: &[u8]) -> bool {
        let _ = memory;
        false
    }

    /// Lets peers on this host write into `memory` with [`Transport::try_put`], in the call with
    /// this number, until [`Transport::close_window`] or [`Transport::revoke`]. It is only a
    /// permission, and the default does nothing. The caller does not use a part of the memory from
    /// the time when a peer may have what it needs to put it, until it receives that part with
    /// [`Transport::try_recv`] into the same place.
    fn open_window(&mut self, memory: &mut [u8], call: u64) {
        let _ = (memory, call);
    }

    /// Takes the permission back after a call in which everything that was put was received.
    fn close_window(&mut self) {}

    /// Sends bytes that the peer receives at `offset` of its window for a call: they are written to
    /// that place as far as possible. Returns the number of bytes that were accepted, which may be
    /// zero, or `None` if the peer has no such window, so that they are to be sent.
    fn try_put(&mut self, to: usize, call: u64, offset: usize, bytes: &[u8]) -> Result<Option<usize>> {
        let _ = (to, call, offset, bytes);
        Ok(None)
    }

    /// Returns the number of bytes of a result that stay in the caches of the host, if every rank
    /// receives as many. Longer ones that this rank does not read again are best received with
    /// [`RecvBuf::copy_to_non_temporal`]. A transport whose received bytes the kernel copies has no
    /// use for that.
    fn cached_bytes(&self) -> usize {
        usize::MAX
    }

    /// Receives as many bytes as have arrived and fit into `into`. Returns their number, which may
    /// be zero.
    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize>;

    /// Returns bytes that have arrived from a peer, in place. These need not be all bytes, but they
    /// include at least one whole element if one has arrived, and are empty only if nothing has
    /// arrived. They remain until [`Transport::consume`]d; bytes that are not consumed are returned
    /// again. `at_most` is the number of bytes that the caller can use now.
    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>>;

    /// Returns whether [`Transport::fill_buf`] would first copy the next bytes from a peer to a
    /// buffer, so that [`Transport::try_recv`] saves a copy. May change with every byte.
    fn fill_buf_copies(&mut self, from: usize) -> bool {
        let _ = from;
        false
    }

    /// Releases the first `bytes` of the last [`Transport::fill_buf`]. Fails if the bytes were
    /// revoked in the meantime, so that torn data never counts as received.
    fn consume(&mut self, from: usize, bytes: usize) -> Result<()>;

    /// Revokes registered memory and the window from peers, before a call that failed returns them
    /// to their owner. Receivers that are still reading registered memory fail in
    /// [`Transport::consume`], and no peer writes to the window afterwards.
    fn revoke(&mut self);

    /// Prepares to sleep until something in `interest` can move. [`Armed::Ready`] means that
    /// something may already be able to move, or that a stream has ended: the next attempt shows
    /// which. After [`Armed::Sleep`] the descriptor becomes readable when something can move, when
    /// any stream of any peer opens or breaks, and on abort. Wakeups may be spurious. Bytes that
    /// [`Transport::fill_buf`] returned, but that the caller could not consume because they are
    /// fewer than those of the largest element, need not prevent sleep.
    fn arm(&mut self, interest: &Interest) -> Result<Armed>;

    /// Returns the descriptor to poll for reading after [`Armed::Sleep`]. A composite transport
    /// sleeps on several transports at once.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Sleeps until the descriptor or `also`, a descriptor of another transport or thread, is
    /// readable, or until `timeout` expires. May return early. Call it after [`Armed::Sleep`]. A
    /// simulation sleeps in virtual time, and ignores `also`.
    fn sleep(&self, also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        wait::sleep(self.descriptor(), also, timeout)
    }

    /// Lets another thread of this rank run.
    fn yield_now(&self) {
        wait::yield_now();
    }

    /// Returns whether all peers on this host were last seen on other processors than this thread,
    /// so that a thread which keeps its processor delays none of them. The default is `false`:
    /// unknown.
    fn peers_run_elsewhere(&self) -> bool {
        false
    }

    /// Returns whether all of these peers probably run now, on other processors than this thread,
    /// so that they may soon send something while it keeps its own. The default is `false`:
    /// unknown.
    fn run_now(&self, peers: &[usize]) -> bool {
        let _ = peers;
        false
    }

    /// Returns whether a send to this peer is a system call, so that messages that begin one after
    /// the other had better be sent together. The default is `true`.
    fn sends_by_system_call(&self, to: usize) -> bool {
        let _ = to;
        true
    }

    /// Returns the strategy by which a thread that uses this transport waits: by default it spins,
    /// then yields for at most `yield_max`, or longer as [`Waiter::new`] states, and then sleeps.
    fn waiter(&self, yield_max: Duration) -> Waiter {
        // In virtual time, neither spinning nor yielding lets time pass.
        let is_simulated = simulation::simulated().is_some();
        Waiter::new(if is_simulated { Duration::ZERO } else { yield_max })
    }

    /// Returns a handle with which any thread can abort this transport.
    fn abort_handle(&self) -> Arc<dyn AbortHandle>;
}

/// The sizes for which receivers are faster if they read the sender's memory in place, as measured
/// for a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrationSizes {
    /// The smallest size in bytes of the data of an all-reduce between two ranks.
    pub reduced_min: usize,
    /// The smallest size in bytes of a root's messages.
    pub root_min: usize,
    /// The largest size in bytes of a message that a root sends to one rank alone.
    pub root_max: usize,
}

impl RegistrationSizes {
    /// Creates the sizes for a transport whose receivers are always faster.
    #[must_use]
    pub const fn any() -> Self {
        Self { reduced_min: 0, root_min: 0, root_max: usize::MAX }
    }

    crate::setters!(reduced_min: usize, root_min: usize, root_max: usize);
}

/// Aborts a transport, from any thread.
pub trait AbortHandle: Send + Sync {
    /// Makes every later method of the transport fail with `cause`, and wakes a sleeping thread.
    /// Only the first cause is kept.
    fn abort(&self, cause: Error);
}

/// The answer of [`Transport::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Something may be able to move: try again.
    Ready,
    /// Nothing can move: sleep on the descriptor.
    Sleep,
}

/// The peers from which bytes are expected, and those to which bytes wait to be sent or released.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest {
    recv: Vec<usize>,
    send: Vec<usize>,
}

impl Interest {
    /// Creates an empty interest, with capacity for `peers` peers: adding them allocates nothing.
    #[must_use]
    pub fn with_capacity(peers: usize) -> Self {
        Self { recv: Vec::with_capacity(peers), send: Vec::with_capacity(peers) }
    }

    /// Removes all peers, and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.recv.clear();
        self.send.clear();
    }

    /// Adds a peer from which bytes are expected.
    #[inline]
    pub fn add_recv(&mut self, from: usize) {
        add(&mut self.recv, from);
    }

    /// Adds a peer to which bytes wait to be sent or released.
    #[inline]
    pub fn add_send(&mut self, to: usize) {
        add(&mut self.send, to);
    }

    /// Returns the peers from which bytes are expected.
    #[must_use]
    #[inline]
    pub fn recv(&self) -> &[usize] {
        &self.recv
    }

    /// Returns the peers to which bytes wait to be sent or released.
    #[must_use]
    #[inline]
    pub fn send(&self) -> &[usize] {
        &self.send
    }
}

/// Adds a peer unless it is present. There are few peers, so a scan is faster than a set.
#[inline]
fn add(peers: &mut Vec<usize>, peer: usize) {
    if !peers.contains(&peer) {
        peers.push(peer);
    }
}

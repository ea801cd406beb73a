//! How bytes move between the members of a group.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::{Error, Group, RecvBuf, Result};

/// Ordered, reliable byte streams to and from every other member of a group. No call blocks.
///
/// A transport knows nothing of messages: it moves bytes, and tells when more may move. It is used by one thread at
/// a time; only its [`AbortHandle`] is shared.
///
/// Positions count the bytes of one direction to or from one peer since the transport was opened.
///
/// # Errors
/// Every method that returns an error returns [`Error::PeerLost`] naming the peer if its stream ended or broke, and
/// the error given to [`AbortHandle::abort`] after an abort. After an error the stream to that peer stays broken;
/// streams to others go on. Bytes that arrived before a stream ended are delivered first.
pub trait Transport: Send {
    /// The group whose members the streams connect.
    fn group(&self) -> Group;

    /// The time. Real in a real transport, virtual in a simulation. Nobody above a transport reads a clock.
    fn now(&self) -> Instant;

    /// The time, or one up to some milliseconds before or behind it, for who asks so often that it should cost nothing.
    fn now_roughly(&mut self) -> Instant {
        self.now()
    }

    /// Sends as many bytes as can go at once, gathered from `bytes` in order. Returns how many were accepted, zero
    /// if none can go now.
    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize>;

    /// The position in the stream to a peer below which the sender's bytes are no longer read. A transport that
    /// copies has released what it accepted; one that lends the sender's memory to the receiver releases when the
    /// receiver has consumed. Until then the memory must hold still.
    fn released(&self, to: usize) -> u64;

    /// Lets receivers on this host read what is sent from these pieces of memory, and from no others, in place from now on.
    /// At first there are none. It is permission, not a duty: a transport that copies everything does nothing here, and one
    /// that lends may take only the first few. What is sent from the pieces must not change until it is
    /// [`Transport::released`].
    fn register(&mut self, memory: &[&[u8]]);

    /// Receives into `into` as many bytes as have arrived and fit. Returns how many, zero if none.
    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize>;

    /// The bytes from a peer that have arrived, where they lie: at least one element if one has arrived whole, not
    /// necessarily all, and none only if there is none. They stay until [`Transport::consume`]d; what is not consumed is
    /// lent or received again. `at_most` is how many bytes the caller can use now.
    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>>;

    /// Whether [`Transport::fill_buf`] copies bytes from a peer to a buffer first, so that [`Transport::try_recv`] costs one copy
    /// less.
    fn fill_buf_copies(&mut self, from: usize) -> bool {
        let _ = from;
        false
    }

    /// Gives back the first `bytes` of what was lent last. Fails if the bytes were revoked meanwhile, so that torn
    /// data never counts as received.
    fn consume(&mut self, from: usize, bytes: usize) -> Result<()>;

    /// Takes back memory that is lent to receivers, before its owner gets it back from a call that failed. Receivers
    /// that still read it fail in [`Transport::consume`].
    fn revoke(&mut self);

    /// Prepares to sleep until something in `interest` can move. [`Armed::Ready`] says that something may be able to
    /// move already, and so says a stream that has ended: the next attempt tells how. After [`Armed::Sleep`] the descriptor becomes readable when something can, when any stream of
    /// any peer breaks, and on abort. It may become readable without need. Bytes that were lent, are fewer than the largest element
    /// has, and were all left can wait for more: they need not keep anybody awake.
    fn arm(&mut self, interest: &Interest) -> Result<Armed>;

    /// What to poll for reading after [`Armed::Sleep`]. A composite sleeps on several transports at once.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// A handle with which any thread ends all waiting on this transport.
    fn abort_handle(&self) -> Arc<dyn AbortHandle>;
}

/// Ends all waiting on a transport, from any thread.
pub trait AbortHandle: Send + Sync {
    /// From now on every method of the transport fails with `cause`, and a sleeper wakes. The first cause stays.
    fn abort(&self, cause: Error);
}

/// What [`Transport::arm`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Something may be able to move: try again.
    Ready,
    /// Nothing can move: sleep on the descriptor.
    Sleep,
}

/// What somebody waits for: bytes from some peers, room for bytes to others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest {
    recv: Vec<usize>,
    send: Vec<usize>,
}

impl Interest {
    /// An interest in nothing, with room for so many peers: adding them allocates nothing.
    #[must_use]
    pub fn with_room(peers: usize) -> Self {
        Self { recv: Vec::with_capacity(peers), send: Vec::with_capacity(peers) }
    }

    /// Forgets everything, and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.recv.clear();
        self.send.clear();
    }

    /// Waits for bytes from this peer too.
    #[inline]
    pub fn add_recv(&mut self, from: usize) {
        add(&mut self.recv, from);
    }

    /// Waits for room to send to this peer too, or for the release of what was sent.
    #[inline]
    pub fn add_send(&mut self, to: usize) {
        add(&mut self.send, to);
    }

    /// The peers from which bytes are awaited.
    #[must_use]
    #[inline]
    pub fn recv(&self) -> &[usize] {
        &self.recv
    }

    /// The peers to which bytes wait to be sent or released.
    #[must_use]
    #[inline]
    pub fn send(&self) -> &[usize] {
        &self.send
    }
}

/// Windows are small, so a scan beats a set.
#[inline]
fn add(peers: &mut Vec<usize>, peer: usize) {
    if !peers.contains(&peer) {
        peers.push(peer);
    }
}

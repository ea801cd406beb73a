//! Routes the bytes of one channel, per peer, through shared memory or a socket.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{AbortHandle, Armed, Group, Interest, RecvBuf, RegistrationSizes, Result, Transport};
use comm_shm::SharedMemoryTransport;
use comm_tcp::TcpTransport;

use crate::both::Both;

/// A channel that uses shared memory to members of the group on this host, and a socket to every
/// other one.
///
/// A call costs one table lookup before it is routed. A sleeping rank sleeps on both transports:
/// bytes, free capacity, deaths and aborts on either wake it.
///
/// Dropping it closes the streams gracefully.
#[derive(Debug)]
pub struct HybridTransport {
    inner: Inner,
}

/// The transports that the members of the channel need.
#[derive(Debug)]
enum Inner {
    Memory(SharedMemoryTransport),
    Tcp(TcpTransport),
    Both(Box<Both>),
}

/// Calls a method of the transport to a peer. This rank and ranks out of range have none; either
/// transport returns an error for them.
macro_rules! toward {
    ($inner:expr, $peer:expr, $side:ident => $call:expr) => {
        match $inner {
            Inner::Memory($side) => $call,
            Inner::Tcp($side) => $call,
            Inner::Both(both) => {
                if both.is_over_tcp($peer) {
                    let $side = both.tcp();
                    $call
                } else {
                    let $side = both.shm();
                    $call
                }
            }
        }
    };
}

/// Calls a method that has the same name on every kind of channel.
macro_rules! whole {
    ($inner:expr, $channel:ident => $call:expr) => {
        match $inner {
            Inner::Memory($channel) => $call,
            Inner::Tcp($channel) => $call,
            Inner::Both($channel) => $call,
        }
    };
}

impl From<SharedMemoryTransport> for HybridTransport {
    fn from(memory: SharedMemoryTransport) -> Self {
        Self { inner: Inner::Memory(memory) }
    }
}

impl From<TcpTransport> for HybridTransport {
    fn from(tcp: TcpTransport) -> Self {
        Self { inner: Inner::Tcp(tcp) }
    }
}

impl From<Both> for HybridTransport {
    fn from(both: Both) -> Self {
        Self { inner: Inner::Both(Box::new(both)) }
    }
}

impl Transport for HybridTransport {
    fn group(&self) -> Group {
        whole!(&self.inner, channel => channel.group())
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn now_roughly(&mut self) -> Instant {
        whole!(&mut self.inner, channel => channel.now_roughly())
    }

    fn is_open(&self, peer: usize) -> bool {
        whole!(&self.inner, channel => channel.is_open(peer))
    }

    fn is_full_mesh(&self) -> bool {
        whole!(&self.inner, channel => channel.is_full_mesh())
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        toward!(&mut self.inner, to, side => side.try_send(to, bytes))
    }

    fn released(&self, to: usize) -> u64 {
        whole!(&self.inner, channel => channel.released(to))
    }

    fn register(&mut self, memory: &[&[u8]]) {
        match &mut self.inner {
            Inner::Memory(channel) => channel.register(memory),
            Inner::Tcp(_) => {}
            Inner::Both(both) => both.shm().register(memory),
        }
    }

    fn is_window(&self, memory: &[u8]) -> bool {
        whole!(&self.inner, channel => channel.is_window(memory))
    }

    fn open_window(&mut self, memory: &mut [u8], call: u64) {
        match &mut self.inner {
            Inner::Memory(channel) => channel.open_window(memory, call),
            Inner::Tcp(_) => {}
            Inner::Both(both) => both.shm().open_window(memory, call),
        }
    }

    fn close_window(&mut self) {
        match &mut self.inner {
            Inner::Memory(channel) => channel.close_window(),
            Inner::Tcp(_) => {}
            Inner::Both(both) => both.shm().close_window(),
        }
    }

    fn try_put(&mut self, to: usize, call: u64, offset: usize, bytes: &[u8]) -> Result<Option<usize>> {
        toward!(&mut self.inner, to, side => side.try_put(to, call, offset, bytes))
    }

    fn registration_sizes(&self) -> RegistrationSizes {
        // Sockets have no registered memory.
        SharedMemoryTransport::REGISTRATION_SIZES
    }

    fn is_read_in_place(&self, memory: &[u8]) -> bool {
        whole!(&self.inner, channel => channel.is_read_in_place(memory))
    }

    fn cached_bytes(&self) -> usize {
        whole!(&self.inner, channel => channel.cached_bytes())
    }

    fn peers_run_elsewhere(&self) -> bool {
        whole!(&self.inner, channel => channel.peers_run_elsewhere())
    }

    fn run_now(&self, peers: &[usize]) -> bool {
        whole!(&self.inner, channel => channel.run_now(peers))
    }

    fn sends_by_system_call(&self, to: usize) -> bool {
        whole!(&self.inner, channel => channel.sends_by_system_call(to))
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        toward!(&mut self.inner, from, side => side.try_recv(from, into))
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        toward!(&mut self.inner, from, side => side.fill_buf(from, at_most))
    }

    fn fill_buf_copies(&mut self, from: usize) -> bool {
        toward!(&mut self.inner, from, side => side.fill_buf_copies(from))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        toward!(&mut self.inner, from, side => side.consume(from, bytes))
    }

    fn revoke(&mut self) {
        whole!(&mut self.inner, channel => channel.revoke());
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        whole!(&mut self.inner, channel => channel.arm(interest))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        whole!(&self.inner, channel => channel.descriptor())
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        whole!(&self.inner, channel => channel.abort_handle())
    }
}

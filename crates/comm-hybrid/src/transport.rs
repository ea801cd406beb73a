//! Routes the bytes of one lane, per peer, through shared memory or a socket.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{AbortHandle, Armed, Group, Interest, Lent, Result, Transport};
use comm_shm::SharedMemoryTransport;
use comm_tcp::TcpTransport;

use crate::both::Both;

/// Shared memory with the members of a group that are on this host, a socket to every other one.
///
/// A call costs one look at a table before it goes where the peer is. Who sleeps sleeps on both: bytes, room, deaths
/// and aborts wake it whichever side they come from, whatever it waits for.
///
/// Dropping it ends the streams in order.
#[derive(Debug)]
pub struct HybridTransport {
    inner: Inner,
}

/// A lane has only what its members need.
#[derive(Debug)]
enum Inner {
    Memory(SharedMemoryTransport),
    Tcp(TcpTransport),
    Both(Box<Both>),
}

impl HybridTransport {
    fn toward(&self, peer: usize) -> &dyn Transport {
        match &self.inner {
            Inner::Memory(memory) => memory,
            Inner::Tcp(tcp) => tcp,
            Inner::Both(both) => both.toward(peer),
        }
    }

    fn toward_mut(&mut self, peer: usize) -> &mut dyn Transport {
        match &mut self.inner {
            Inner::Memory(memory) => memory,
            Inner::Tcp(tcp) => tcp,
            Inner::Both(both) => both.toward_mut(peer),
        }
    }
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
        match &self.inner {
            Inner::Memory(memory) => memory.group(),
            Inner::Tcp(tcp) => tcp.group(),
            Inner::Both(both) => both.group(),
        }
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.toward_mut(to).try_send(to, bytes)
    }

    fn released(&self, to: usize) -> u64 {
        self.toward(to).released(to)
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.toward_mut(from).try_recv(from, into)
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        self.toward_mut(from).lend(from, at_most)
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.toward_mut(from).consume(from, bytes)
    }

    fn revoke(&mut self) {
        match &mut self.inner {
            Inner::Memory(memory) => memory.revoke(),
            Inner::Tcp(tcp) => tcp.revoke(),
            Inner::Both(both) => both.revoke(),
        }
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        match &mut self.inner {
            Inner::Memory(memory) => memory.arm(interest),
            Inner::Tcp(tcp) => tcp.arm(interest),
            Inner::Both(both) => both.arm(interest),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.inner {
            Inner::Memory(memory) => memory.descriptor(),
            Inner::Tcp(tcp) => tcp.descriptor(),
            Inner::Both(both) => both.descriptor(),
        }
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        match &self.inner {
            Inner::Memory(memory) => memory.abort_handle(),
            Inner::Tcp(tcp) => tcp.abort_handle(),
            Inner::Both(both) => both.abort_handle(),
        }
    }
}

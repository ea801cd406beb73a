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

/// Calls a method of the side on which a peer is. This rank, and one that there is not, is on none, as either side will
/// say.
macro_rules! toward {
    ($inner:expr, $peer:expr, $side:ident => $call:expr) => {
        match $inner {
            Inner::Memory($side) => $call,
            Inner::Tcp($side) => $call,
            Inner::Both(both) => {
                if both.is_far($peer) {
                    let $side = both.far();
                    $call
                } else {
                    let $side = both.near();
                    $call
                }
            }
        }
    };
}

/// Calls a method that has the same name on every kind of lane.
macro_rules! whole {
    ($inner:expr, $lane:ident => $call:expr) => {
        match $inner {
            Inner::Memory($lane) => $call,
            Inner::Tcp($lane) => $call,
            Inner::Both($lane) => $call,
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
        whole!(&self.inner, lane => lane.group())
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn now_roughly(&mut self) -> Instant {
        whole!(&mut self.inner, lane => lane.now_roughly())
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        toward!(&mut self.inner, to, side => side.try_send(to, bytes))
    }

    fn released(&self, to: usize) -> u64 {
        whole!(&self.inner, lane => lane.released(to))
    }

    fn expose(&mut self, memory: &[&[u8]]) {
        match &mut self.inner {
            Inner::Memory(lane) => lane.expose(memory),
            Inner::Tcp(_) => {}
            Inner::Both(both) => both.near().expose(memory),
        }
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        toward!(&mut self.inner, from, side => side.try_recv(from, into))
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        toward!(&mut self.inner, from, side => side.lend(from, at_most))
    }

    fn lend_copies(&mut self, from: usize) -> bool {
        toward!(&mut self.inner, from, side => side.lend_copies(from))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        toward!(&mut self.inner, from, side => side.consume(from, bytes))
    }

    fn revoke(&mut self) {
        whole!(&mut self.inner, lane => lane.revoke());
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        whole!(&mut self.inner, lane => lane.arm(interest))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        whole!(&self.inner, lane => lane.descriptor())
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        whole!(&self.inner, lane => lane.abort_handle())
    }
}

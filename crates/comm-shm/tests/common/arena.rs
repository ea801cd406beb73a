//! Lanes whose every send is from memory that the lanes gave out.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    AbortHandle, Allocation, Armed, Group, Interest, LaneId, Lanes, Lent, LinkModel, Result, Transport,
};
use comm_shm::{SharedMemoryLanes, SharedMemoryTransport};

/// How much one rank can have out at once, to each other one.
const ARENA_BYTES: usize = 1 << 20;

/// Lanes that allocate what they send.
pub(crate) struct ArenaLanes(pub(crate) SharedMemoryLanes);

/// Moves bytes out of an arena per peer, in which they hold still until all of them are released.
pub(crate) struct ArenaTransport {
    inner: SharedMemoryTransport,
    arenas: Vec<Arena>,
}

struct Arena {
    memory: Allocation,
    used: usize,
    accepted: u64,
}

impl Lanes for ArenaLanes {
    type Lane = ArenaTransport;

    fn group(&self) -> Group {
        self.0.group()
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    fn links(&self) -> LinkModel {
        self.0.links()
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.0.allocate(bytes)
    }

    fn open_among(&self, lane: LaneId, members: &[usize], deadline: Instant) -> Result<ArenaTransport> {
        let inner = self.0.open_among(lane, members, deadline)?;
        let arena = |_| Ok(Arena { memory: self.0.allocate(ARENA_BYTES)?, used: 0, accepted: 0 });
        let arenas = members.iter().map(arena).collect::<Result<_>>()?;
        Ok(ArenaTransport { inner, arenas })
    }
}

impl Transport for ArenaTransport {
    fn group(&self) -> Group {
        self.inner.group()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        let Some(arena) = self.arenas.get_mut(to) else { return self.inner.try_send(to, bytes) };
        if self.inner.released(to) >= arena.accepted {
            arena.used = 0;
        }
        let mut sent = 0;
        for piece in bytes {
            let room = arena.memory.bytes_mut().get_mut(arena.used..).unwrap_or_default();
            let len = piece.len().min(room.len());
            room[..len].copy_from_slice(&piece[..len]);
            let gone = self.inner.try_send(to, &[IoSlice::new(&room[..len])])?;
            arena.used += gone;
            arena.accepted += gone as u64;
            sent += gone;
            if gone < piece.len() {
                break;
            }
        }
        Ok(sent)
    }

    fn released(&self, to: usize) -> u64 {
        self.inner.released(to)
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.inner.try_recv(from, into)
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        self.inner.lend(from, at_most)
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.inner.consume(from, bytes)
    }

    fn revoke(&mut self) {
        self.inner.revoke();
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.inner.arm(interest)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        self.inner.abort_handle()
    }
}

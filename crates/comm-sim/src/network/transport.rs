//! The transport of one rank on the network.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use comm_core::{
    AbortHandle, Armed, During, Error, Group, Interest, Invalid, Loss, RecvBuf, Result, Transport, Waiter,
};

use super::SharedWorld;
use super::world::World;
use crate::endpoint::Endpoint;

/// Streams to and from every other rank of a [`Network`](super::Network). Dropping it closes them
/// in order.
///
/// In a rank of [`run`](super::run), [`Transport::sleep`] sleeps in virtual time. Only an abort
/// makes the descriptor readable.
#[derive(Debug)]
pub struct NetworkTransport {
    group: Group,
    world: SharedWorld,
    /// The number of the channel.
    channel: usize,
    /// The rank in the network.
    rank: usize,
    endpoint: Arc<Endpoint>,
    changes_seen: u64,
    filled: Vec<u8>,
}

impl NetworkTransport {
    pub(super) fn new(group: Group, world: SharedWorld, channel: usize, rank: usize) -> Result<Self> {
        let endpoint = Arc::new(world.lock().endpoint()?);
        world.lock().ranks[rank].open_transports += 1;
        Ok(Self { group, world, channel, rank, endpoint, changes_seen: 0, filled: Vec::new() })
    }

    fn check_peer(&self, peer: usize) -> Result<()> {
        if peer >= self.group.size() || peer == self.group.rank() {
            return Err(Invalid::Rank { rank: peer, size: self.group.size() }.into());
        }
        Ok(())
    }

    /// Returns the world, if this rank is alive and `peer` is in range.
    fn enter(&self, peer: usize) -> Result<MutexGuard<'_, World>> {
        self.check_peer(peer)?;
        self.enter_alone()
    }

    fn enter_alone(&self) -> Result<MutexGuard<'_, World>> {
        self.endpoint.check()?;
        let world = self.world.lock();
        if world.is_dead(self.rank) {
            return Err(Error::Internal("a dead rank uses its transport".into()));
        }
        Ok(world)
    }

    /// Returns the world, if bytes can be received.
    fn receive(&self, from: usize) -> Result<MutexGuard<'_, World>> {
        let mut world = self.enter(from)?;
        world.connect(self.channel, self.group.rank(), from);
        match world.link(self.channel, from, self.group.rank()).recv_loss() {
            Some(loss) => Err(lost(world.reported(from, self.group), loss, During::Receiving)),
            None => Ok(world),
        }
    }

    /// Shows bytes that have arrived, and returns the number of visible bytes.
    fn show(&self, world: &mut World, from: usize) -> usize {
        let rank = self.group.rank();
        let arrived = world.link(self.channel, from, rank).arrived();
        let hidden = arrived.len() - arrived.shown();
        let more = world.portion(self.channel, rank, hidden);
        world.link(self.channel, from, rank).arrived().show(|_| more)
    }
}

/// Aborts a transport, and wakes the thread that sleeps on it.
struct NetworkAbort {
    endpoint: Arc<Endpoint>,
    world: SharedWorld,
    rank: usize,
}

impl AbortHandle for NetworkAbort {
    fn abort(&self, cause: Error) {
        self.endpoint.abort(cause);
        self.world.lock().threads.wake_rank(self.rank);
    }
}

fn lost(peer: usize, loss: Loss, during: During) -> Error {
    Error::PeerLost { peer, during, loss }
}

/// Returns the first `count` bytes of `parts`.
fn gather(parts: &[IoSlice<'_>], count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    for part in parts {
        bytes.extend_from_slice(&part[..part.len().min(count - bytes.len())]);
    }
    bytes
}

impl Transport for NetworkTransport {
    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        self.world.lock().instant_of(self.rank)
    }

    fn is_open(&self, peer: usize) -> bool {
        self.world.lock().channels[self.channel].is_open(self.group.rank(), peer)
    }

    fn next_open(&self, from: usize) -> Option<usize> {
        self.world.lock().channels[self.channel].next_open(self.group.rank(), from)
    }

    fn is_full_mesh(&self) -> bool {
        !self.world.lock().plan.on_demand
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        let rank = self.group.rank();
        self.world.begin_operation(self.rank);
        let mut world = self.enter(to)?;
        world.connect(self.channel, rank, to);
        if let Some(loss) = world.link(self.channel, rank, to).send_loss() {
            return Err(lost(world.reported(to, self.group), loss, During::Sending));
        }
        let offered = bytes.iter().map(|part| part.len()).sum::<usize>();
        let capacity = world.plan.capacity.max(1);
        let space = world.link(self.channel, rank, to).space(capacity).min(offered);
        let sent = world.portion(self.channel, rank, space);
        world.link(self.channel, rank, to).record_offer(offered, sent);
        if sent > 0 {
            world.carry(self.channel, rank, to, gather(bytes, sent));
        }
        Ok(sent)
    }

    fn released(&self, to: usize) -> u64 {
        let mut world = self.world.lock();
        let release = world.plan.release;
        if to < self.group.size() {
            world.link(self.channel, self.group.rank(), to).released(release)
        } else {
            0
        }
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.world.begin_operation(self.rank);
        let mut world = self.receive(from)?;
        let received = self.show(&mut world, from).min(into.len());
        world.link(self.channel, from, self.group.rank()).arrived().peek(&mut into[..received]);
        world.consume(self.channel, from, self.group.rank(), received);
        Ok(received)
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        self.world.begin_operation(self.rank);
        let mut filled = std::mem::take(&mut self.filled);
        let mut world = self.receive(from)?;
        filled.resize(self.show(&mut world, from).min(at_most), 0);
        world.link(self.channel, from, self.group.rank()).arrived().peek(&mut filled);
        drop(world);
        self.filled = filled;
        Ok(RecvBuf::from_slice(&self.filled))
    }

    fn fill_buf_copies(&mut self, _from: usize) -> bool {
        true
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.world.begin_operation(self.rank);
        let mut world = self.receive(from)?;
        let shown = world.link(self.channel, from, self.group.rank()).arrived().shown();
        if bytes > shown {
            return Err(Error::Internal(format!("{bytes} bytes consumed of {shown}")));
        }
        world.consume(self.channel, from, self.group.rank(), bytes);
        Ok(())
    }

    fn revoke(&mut self) {
        self.world.lock().revoke(self.channel, self.group.rank());
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.world.begin_operation(self.rank);
        for &peer in interest.recv().iter().chain(interest.send()) {
            self.check_peer(peer)?;
        }
        self.endpoint.drain()?;
        let rank = self.group.rank();
        let mut world = self.enter_alone()?;
        let (capacity, release) = (world.plan.capacity.max(1), world.plan.release);
        let changes = world.channels[self.channel].changes[rank];
        let open = |world: &World, peer: usize| world.channels[self.channel].is_open(rank, peer);
        let can_recv = |&from: &usize| open(&world, from) && world.link(self.channel, from, rank).can_recv();
        let ready = interest.recv().iter().any(can_recv)
            || interest.send().iter().any(|&to| {
                open(&world, to) && world.link(self.channel, rank, to).can_send(capacity, release)
            })
            || changes != self.changes_seen;
        world.threads.arm(self.world.thread(self.rank), self.channel, ready);
        drop(world);
        self.changes_seen = changes;
        Ok(if ready { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.descriptor()
    }

    fn sleep(&self, _also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        self.endpoint.check()?;
        self.world.sleep(self.rank, timeout)
    }

    /// In virtual time, neither spinning nor yielding lets time pass.
    fn waiter(&self, _yield_max: Duration) -> Waiter {
        Waiter::new(Duration::ZERO)
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        let (endpoint, world) = (Arc::clone(&self.endpoint), self.world.clone());
        Arc::new(NetworkAbort { endpoint, world, rank: self.rank })
    }
}

impl Drop for NetworkTransport {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.ranks[self.rank].open_transports -= 1;
        world.leave(self.channel, self.group.rank());
    }
}

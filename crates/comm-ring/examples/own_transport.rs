//! A transport of your own: all collectives over queues of bytes between threads.
//!
//! A transport is two types. `QueueTransport` implements `Transport`: it is one rank's end of a
//! channel, moves bytes to and from every other rank without blocking, has a descriptor to sleep
//! on, and reports peers that are gone. `QueueFabric` implements `Fabric`: it opens channels
//! between ranks that already know each other. `RingCommunicator` does the rest. The tests at the
//! end of this file run `comm-sim`'s suite, which checks that both keep the contracts of their
//! traits.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{
    AbortHandle, Allocation, Armed, ChannelId, Comm, During, Error, Fabric, Group, GroupId, Interest, Link,
    LinkModel, Loss, Membership, Notify, RecvBuf, ReduceOp, Result, Transport, Until,
};
use comm_ring::{RingCommunicator, RingConfig};

/// The capacity of a queue in bytes.
const CAPACITY: usize = 64 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in flight from one rank to another. It is closed when either rank is gone.
#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// Wakes a rank that sleeps on its descriptor, and passes it the cause of an abort.
struct Waker {
    notify: Notify,
    cause: OnceLock<Error>,
}

impl AbortHandle for Waker {
    fn abort(&self, cause: Error) {
        // Keeps the first cause.
        let _ = self.cause.set(cause);
        self.notify.notify();
    }
}

/// The shared state of the ranks of a channel.
struct Channel {
    /// The queue from rank `a` to rank `b` is at `a * size + b`.
    queues: Vec<Mutex<Queue>>,
    /// One per rank.
    wakers: Vec<Arc<Waker>>,
    /// The ranks that have opened the channel.
    arrived: Mutex<Vec<bool>>,
    changed: Condvar,
}

impl Channel {
    fn new(size: usize) -> Result<Arc<Self>> {
        let waker = |_| Ok(Arc::new(Waker { notify: Notify::new()?, cause: OnceLock::new() }));
        let wakers = (0..size).map(waker).collect::<Result<_>>()?;
        let queues = (0..size * size).map(|_| Mutex::default()).collect();
        Ok(Arc::new(Self { queues, wakers, arrived: Mutex::new(vec![false; size]), changed: Condvar::new() }))
    }

    fn queue(&self, from: usize, to: usize) -> MutexGuard<'_, Queue> {
        lock(&self.queues[from * self.wakers.len() + to])
    }
}

/// One rank's end of a channel.
struct QueueTransport {
    group: Group,
    channel: Arc<Channel>,
    /// The number of bytes that each peer's queue has accepted.
    accepted: Vec<u64>,
    /// The number of peers that were gone at the last check.
    gone: usize,
    /// A copy of the bytes of `fill_buf`, because no reference into a locked queue can be returned.
    filled: Vec<u8>,
}

impl QueueTransport {
    fn new(group: Group, channel: Arc<Channel>) -> Self {
        Self { group, channel, accepted: vec![0; group.size()], gone: 0, filled: Vec::new() }
    }

    fn waker(&self) -> &Arc<Waker> {
        &self.channel.wakers[self.group.rank()]
    }

    fn check_abort(&self) -> Result<()> {
        self.waker().cause.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }

    fn outgoing(&self, to: usize) -> MutexGuard<'_, Queue> {
        self.channel.queue(self.group.rank(), to)
    }

    /// Returns the queue from a peer, or an error if it is empty and stays so.
    fn incoming(&self, from: usize) -> Result<MutexGuard<'_, Queue>> {
        self.check_abort()?;
        let queue = self.channel.queue(from, self.group.rank());
        if queue.closed && queue.bytes.is_empty() {
            return Err(Error::PeerLost { peer: from, during: During::Receiving, loss: Loss::Closed });
        }
        Ok(queue)
    }
}

impl Transport for QueueTransport {
    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.check_abort()?;
        let mut queue = self.outgoing(to);
        if queue.closed {
            return Err(Error::PeerLost { peer: to, during: During::Sending, loss: Loss::Closed });
        }
        let before = queue.bytes.len();
        for part in bytes {
            let fits = part.len().min(CAPACITY - queue.bytes.len());
            queue.bytes.extend(&part[..fits]);
        }
        let sent = queue.bytes.len() - before;
        drop(queue);
        if sent > 0 {
            self.accepted[to] += sent as u64;
            self.channel.wakers[to].notify.notify();
        }
        Ok(sent)
    }

    /// The queue holds a copy, so the sender may change its memory immediately.
    fn released(&self, to: usize) -> u64 {
        self.accepted[to]
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        let received = self.fill_buf(from, into.len())?.len();
        into[..received].copy_from_slice(&self.filled);
        self.consume(from, received)?;
        Ok(received)
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        let filled = self.incoming(from)?.bytes.iter().take(at_most).copied().collect();
        self.filled = filled;
        Ok(RecvBuf::from_slice(&self.filled))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.check_abort()?;
        self.channel.queue(from, self.group.rank()).bytes.drain(..bytes);
        if bytes > 0 {
            self.channel.wakers[from].notify.notify();
        }
        Ok(())
    }

    /// Peers never read the sender's memory.
    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        // Cleared before the check, so that a change after the check notifies again.
        self.waker().notify.clear();
        self.check_abort()?;
        let rank = self.group.rank();
        let is_closed = |peer: &usize| self.outgoing(*peer).closed || self.channel.queue(*peer, rank).closed;
        let gone = self.group.peers().filter(is_closed).count();
        let can_recv = |&from: &usize| self.incoming(from).map_or(true, |queue| !queue.bytes.is_empty());
        let can_send = |&to: &usize| {
            let queue = self.outgoing(to);
            queue.closed || queue.bytes.len() < CAPACITY
        };
        let ready =
            gone != self.gone || interest.recv().iter().any(can_recv) || interest.send().iter().any(can_send);
        self.gone = gone;
        Ok(if ready { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.waker().notify.as_fd()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Waker>::clone(self.waker())
    }
}

/// The other ranks receive the bytes that were sent, and then detect that this one is gone.
impl Drop for QueueTransport {
    fn drop(&mut self) {
        for peer in self.group.peers() {
            self.outgoing(peer).closed = true;
            self.channel.queue(peer, self.group.rank()).closed = true;
            self.channel.wakers[peer].notify.notify();
        }
    }
}

/// Ranks that give unequal lists of members open different channels.
type ChannelKey = (ChannelId, Vec<usize>);

/// The channels that are open or being opened.
#[derive(Default)]
struct Hub(Mutex<HashMap<ChannelKey, Weak<Channel>>>);

impl Hub {
    fn channel(&self, id: ChannelId, members: &[usize]) -> Result<Arc<Channel>> {
        let mut fabric = lock(&self.0);
        let known = fabric.entry((id, members.to_vec())).or_default();
        if let Some(channel) = known.upgrade() {
            return Ok(channel);
        }
        let channel = Channel::new(members.len())?;
        *known = Arc::downgrade(&channel);
        Ok(channel)
    }
}

/// Opens the channels of one rank.
struct QueueFabric {
    group: Group,
    hub: Arc<Hub>,
}

impl QueueFabric {
    /// Creates the fabrics of the ranks of a world.
    fn create(size: usize) -> Result<Vec<Self>> {
        let hub = Arc::new(Hub::default());
        let fabric = |rank| {
            let group = Group::new(GroupId::WORLD, Membership { rank, size })?;
            Ok(Self { group, hub: Arc::clone(&hub) })
        };
        (0..size).map(fabric).collect()
    }
}

impl Fabric for QueueFabric {
    type Channel = QueueTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// An estimate, by which algorithms are selected.
    fn links(&self) -> LinkModel {
        LinkModel::uniform(Link { latency: 1e-6, overhead: 5e-7, per_byte: 1e-9 }, 1e-10)
    }

    fn shared_buffer(&self, _bytes: usize) -> Option<Allocation> {
        None
    }

    fn open_among(&self, id: ChannelId, members: &[usize], until: Until<'_>) -> Result<QueueTransport> {
        let (group, started) = (self.group.subgroup(id.group, members)?, self.now());
        let channel = self.hub.channel(id, members)?;
        lock(&channel.arrived)[group.rank()] = true;
        channel.changed.notify_all();
        loop {
            let now = self.now();
            let expired = until.check_expired(now)?;
            let arrived = lock(&channel.arrived);
            let absent: Vec<usize> = (0..group.size()).filter(|&rank| !arrived[rank]).collect();
            if absent.is_empty() {
                drop(arrived);
                return Ok(QueueTransport::new(group, channel));
            }
            if expired {
                let after = now - started;
                return Err(Error::Timeout { waiting_for: absent, after, during: During::Rendezvous });
            }
            let pause = until.next_check(now).saturating_duration_since(now);
            drop(channel.changed.wait_timeout(arrived, pause));
        }
    }
}

/// The program of each rank.
fn rank_main(fabric: QueueFabric) -> Result<Vec<u64>> {
    let timeout = Duration::from_secs(60);
    let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), timeout)?);
    let mut buffer: Vec<u64> = (0..100_000).map(|index| index * comm.rank() as u64).collect();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.finalize()?;
    Ok(buffer)
}

fn main() -> Result<()> {
    let fabric = QueueFabric::create(3)?;
    thread::scope(|scope| {
        let ranks: Vec<_> = fabric.into_iter().map(|fabric| scope.spawn(|| rank_main(fabric))).collect();
        for rank in ranks {
            let sums = rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            // index * (0 + 1 + 2)
            assert!(sums.into_iter().eq((0..100_000).map(|index| index * 3)));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::QueueFabric;

    #[test]
    fn every_rank_gets_the_sum() {
        super::main().unwrap();
    }

    // The tests that every transport must pass.
    comm_sim::transport_conformance!(contract, |size| QueueFabric::create(size).unwrap());
}

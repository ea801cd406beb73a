//! A transport of your own: all collectives over queues of bytes between threads.
//!
//! A transport is two types. `QueueTransport` implements `Transport`: it is one rank's end of a lane, moves bytes to and
//! from every other rank without blocking, has a descriptor to sleep on, and reports peers that are gone. `QueueLanes`
//! implements `Lanes`: it opens lanes between ranks that already know each other. `RingCommunicator` does the rest. The tests
//! at the end of this file run `comm-sim`'s suite, which checks that both do what their traits say.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{
    AbortHandle, Allocation, Armed, Bell, Comm, During, Error, Group, GroupId, Interest, LaneId, Lanes, Lent,
    Link, LinkModel, Loss, Membership, ReduceOp, Result, Transport, Until,
};
use comm_ring::{RingCommunicator, RingConfig};

/// How many bytes a queue holds.
const CAPACITY: usize = 64 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes on their way from one rank to another. It is closed when either rank is gone.
#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    closed: bool,
}

/// Wakes a rank that sleeps on its descriptor, and tells it of an abort.
struct Waker {
    bell: Bell,
    cause: OnceLock<Error>,
}

impl AbortHandle for Waker {
    fn abort(&self, cause: Error) {
        // The first cause stays.
        let _ = self.cause.set(cause);
        self.bell.ring();
    }
}

/// What the ranks of a lane share.
struct Lane {
    /// The queue from rank `a` to rank `b` is at `a * size + b`.
    queues: Vec<Mutex<Queue>>,
    /// One per rank.
    wakers: Vec<Arc<Waker>>,
    /// Which ranks have opened the lane.
    arrived: Mutex<Vec<bool>>,
    changed: Condvar,
}

impl Lane {
    fn new(size: usize) -> Result<Arc<Self>> {
        let waker = |_| Ok(Arc::new(Waker { bell: Bell::new()?, cause: OnceLock::new() }));
        let wakers = (0..size).map(waker).collect::<Result<_>>()?;
        let queues = (0..size * size).map(|_| Mutex::default()).collect();
        Ok(Arc::new(Self { queues, wakers, arrived: Mutex::new(vec![false; size]), changed: Condvar::new() }))
    }

    fn queue(&self, from: usize, to: usize) -> MutexGuard<'_, Queue> {
        lock(&self.queues[from * self.wakers.len() + to])
    }
}

/// One rank's end of a lane.
struct QueueTransport {
    group: Group,
    lane: Arc<Lane>,
    /// How many bytes each peer's queue has accepted.
    accepted: Vec<u64>,
    /// How many peers were gone when this rank last looked.
    gone: usize,
    /// A copy of what is lent, as a queue behind a lock cannot be lent from.
    lent: Vec<u8>,
}

impl QueueTransport {
    fn new(group: Group, lane: Arc<Lane>) -> Self {
        Self { group, lane, accepted: vec![0; group.size()], gone: 0, lent: Vec::new() }
    }

    fn waker(&self) -> &Arc<Waker> {
        &self.lane.wakers[self.group.rank()]
    }

    fn check_abort(&self) -> Result<()> {
        self.waker().cause.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }

    fn outgoing(&self, to: usize) -> MutexGuard<'_, Queue> {
        self.lane.queue(self.group.rank(), to)
    }

    /// The queue from a peer, unless it is empty and stays so.
    fn incoming(&self, from: usize) -> Result<MutexGuard<'_, Queue>> {
        self.check_abort()?;
        let queue = self.lane.queue(from, self.group.rank());
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
            self.lane.wakers[to].bell.ring();
        }
        Ok(sent)
    }

    /// The queue has a copy: the sender may change its memory at once.
    fn released(&self, to: usize) -> u64 {
        self.accepted[to]
    }

    fn expose(&mut self, _memory: &[&[u8]]) {}

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        let received = self.lend(from, into.len())?.len();
        into[..received].copy_from_slice(&self.lent);
        self.consume(from, received)?;
        Ok(received)
    }

    fn lend(&mut self, from: usize, at_most: usize) -> Result<Lent<'_>> {
        let lent = self.incoming(from)?.bytes.iter().take(at_most).copied().collect();
        self.lent = lent;
        Ok(Lent::from_slice(&self.lent))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.check_abort()?;
        self.lane.queue(from, self.group.rank()).bytes.drain(..bytes);
        if bytes > 0 {
            self.lane.wakers[from].bell.ring();
        }
        Ok(())
    }

    /// Nobody reads the sender's memory.
    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        // In this order: what changes after the look rings the bell again.
        self.waker().bell.silence();
        self.check_abort()?;
        let rank = self.group.rank();
        let is_closed = |peer: &usize| self.outgoing(*peer).closed || self.lane.queue(*peer, rank).closed;
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
        self.waker().bell.as_fd()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Waker>::clone(self.waker())
    }
}

/// The other ranks receive what was sent, and then learn that this one is gone.
impl Drop for QueueTransport {
    fn drop(&mut self) {
        for peer in self.group.peers() {
            self.outgoing(peer).closed = true;
            self.lane.queue(peer, self.group.rank()).closed = true;
            self.lane.wakers[peer].bell.ring();
        }
    }
}

/// Ranks that give unlike lists of members do not meet.
type LaneKey = (LaneId, Vec<usize>);

/// The lanes that are open or being opened.
#[derive(Default)]
struct Hub(Mutex<HashMap<LaneKey, Weak<Lane>>>);

impl Hub {
    fn lane(&self, id: LaneId, members: &[usize]) -> Result<Arc<Lane>> {
        let mut lanes = lock(&self.0);
        let known = lanes.entry((id, members.to_vec())).or_default();
        if let Some(lane) = known.upgrade() {
            return Ok(lane);
        }
        let lane = Lane::new(members.len())?;
        *known = Arc::downgrade(&lane);
        Ok(lane)
    }
}

/// One rank's way to open lanes.
struct QueueLanes {
    group: Group,
    hub: Arc<Hub>,
}

impl QueueLanes {
    /// The lanes of each rank of a world.
    fn create(size: usize) -> Result<Vec<Self>> {
        let hub = Arc::new(Hub::default());
        let lanes = |rank| {
            let group = Group::new(GroupId::WORLD, Membership { rank, size })?;
            Ok(Self { group, hub: Arc::clone(&hub) })
        };
        (0..size).map(lanes).collect()
    }
}

impl Lanes for QueueLanes {
    type Lane = QueueTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// An estimate, by which algorithms are chosen.
    fn links(&self) -> LinkModel {
        LinkModel::uniform(Link { latency: 1e-6, overhead: 5e-7, per_byte: 1e-9 }, 1e-10)
    }

    fn stage(&self, _bytes: usize) -> Option<Allocation> {
        None
    }

    fn open_among(&self, id: LaneId, members: &[usize], until: Until<'_>) -> Result<QueueTransport> {
        let (group, started) = (self.group.subgroup(id.group, members)?, self.now());
        let lane = self.hub.lane(id, members)?;
        lock(&lane.arrived)[group.rank()] = true;
        lane.changed.notify_all();
        loop {
            let now = self.now();
            let goes_on = until.goes_on(now)?;
            let arrived = lock(&lane.arrived);
            let absent: Vec<usize> = (0..group.size()).filter(|&rank| !arrived[rank]).collect();
            if absent.is_empty() {
                drop(arrived);
                return Ok(QueueTransport::new(group, lane));
            }
            if !goes_on {
                let after = now - started;
                return Err(Error::Timeout { waiting_for: absent, after, during: During::Rendezvous });
            }
            let pause = until.next_check(now).saturating_duration_since(now);
            drop(lane.changed.wait_timeout(arrived, pause));
        }
    }
}

/// What each rank does: any program.
fn rank_main(lanes: QueueLanes) -> Result<Vec<u64>> {
    let timeout = Duration::from_secs(60);
    let comm = Comm::new(RingCommunicator::new(lanes, RingConfig::default(), timeout)?);
    let mut buffer: Vec<u64> = (0..100_000).map(|index| index * comm.rank() as u64).collect();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.finalize()?;
    Ok(buffer)
}

fn main() -> Result<()> {
    let lanes = QueueLanes::create(3)?;
    thread::scope(|scope| {
        let ranks: Vec<_> = lanes.into_iter().map(|lanes| scope.spawn(|| rank_main(lanes))).collect();
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
    use super::QueueLanes;

    #[test]
    fn every_rank_gets_the_sum() {
        super::main().unwrap();
    }

    // What every transport must do, each a test.
    comm_sim::transport_conformance!(contract, |size| QueueLanes::create(size).unwrap());
}

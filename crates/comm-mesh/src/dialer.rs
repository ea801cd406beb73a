//! The thread that makes connections on demand, for all channels of a mesh: it connects to peers,
//! asks peers to connect, and accepts their connections.
//!
//! It is started when the first channel needs it, and so never in a small world.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use comm_core::simulation::{self, ScheduledThread};
use comm_core::{Error, Notify, Process, Result};
use rustix::event::{PollFd, PollFlags};

use crate::accept_queue::{AcceptQueue, QueueState};
use crate::connect::{ConnId, Connect};
use crate::mesh::{ASK_INDEX, Destination, Protocol};
use crate::on_demand::{OnDemandPeer, PeerState};
use crate::pending::ACCEPT_PAUSE;
use crate::poll::wait;

/// The thread of a mesh. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct DialerThread<P: Protocol> {
    shared: Arc<Shared>,
    queue: Arc<AcceptQueue<P>>,
    thread: Option<JoinHandle<()>>,
    scheduled: ScheduledThread,
    /// The process to which the thread belongs.
    process: Process,
}

#[derive(Debug)]
struct Shared {
    wake: Arc<Notify>,
    is_stopped: AtomicBool,
}

impl<P: Protocol> DialerThread<P> {
    /// Starts the thread of the rank `own` of the world.
    pub(crate) fn start(own: usize, queue: Arc<AcceptQueue<P>>, protocol: Arc<P>) -> Result<Self> {
        let shared = Arc::new(Shared { wake: Arc::new(Notify::new()?), is_stopped: AtomicBool::new(false) });
        let attempts = Vec::new();
        let dialer =
            Dialer { own, shared: Arc::clone(&shared), queue: Arc::clone(&queue), protocol, attempts };
        let (scheduled, body) = ScheduledThread::new(move || dialer.run());
        // From its first turn on, the thread must be notified of what others accept.
        queue.lock().dialer = Some(Arc::clone(&shared.wake));
        let thread = thread::Builder::new().name("comm-dialer".into()).spawn(body);
        let thread = thread.map_err(|error| {
            queue.lock().dialer = None;
            Error::io("start a thread that connects ranks", error)
        })?;
        Ok(Self { shared, queue, thread: Some(thread), scheduled, process: Process::current() })
    }

    /// Makes the thread look for work.
    pub(crate) fn wake(&self) {
        self.shared.wake.notify();
    }
}

impl<P: Protocol> Drop for DialerThread<P> {
    fn drop(&mut self) {
        // The thread does not exist in a forked child.
        if !self.process.is_current() {
            return;
        }
        self.shared.is_stopped.store(true, Ordering::Release);
        self.wake();
        self.scheduled.await_end();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that connects ranks panicked");
        }
        self.queue.lock().dialer = None;
    }
}

/// The state of the thread.
struct Dialer<P: Protocol> {
    /// The rank of this process in the world.
    own: usize,
    shared: Arc<Shared>,
    queue: Arc<AcceptQueue<P>>,
    protocol: Arc<P>,
    attempts: Vec<Attempt<P>>,
}

/// An attempt to be connected to a peer of a channel.
struct Attempt<P: Protocol> {
    key: P::Key,
    id: ConnId,
    /// Whether the connection is to be closed at once, because this rank has closed the channel.
    is_closed: bool,
    side: Side<P>,
}

/// The side of a pair.
enum Side<P: Protocol> {
    /// The one that connects.
    Higher(P::Connect),
    /// The one that asks the other to connect.
    Lower(P::Ask),
}

impl<P: Protocol> Dialer<P> {
    fn run(mut self) {
        loop {
            // Cleared before the work is looked for, or a notification that arrives in between
            // would be lost.
            self.shared.wake.clear();
            if self.shared.is_stopped.load(Ordering::Acquire) {
                return;
            }
            let due = self.work();
            let mut descriptors: Vec<PollFd<'_>> =
                self.attempts.iter().filter_map(Attempt::poll_fd).collect();
            let own = [self.shared.wake.as_fd(), self.queue.as_fd()];
            descriptors.extend(own.map(|own| PollFd::from_borrowed_fd(own, PollFlags::IN)));
            if let Err(error) = wait(&mut descriptors, due) {
                tracing::error!(%error, "cannot wait for connections");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Does all work that needs no waiting. Returns the time at which more is due.
    fn work(&mut self) -> Option<Instant> {
        let queue = Arc::clone(&self.queue);
        {
            let mut state = queue.lock();
            if let Err(error) = state.turn(&self.protocol) {
                tracing::error!(%error, "cannot accept a connection");
            }
            self.take_accepted(&mut state);
            self.begin(&mut state);
        }
        let ended = self.advance();
        let mut state = queue.lock();
        for (key, id, outcome) in ended {
            state.accepted.remove(&Destination { key, world_rank: id.world_rank, index: ASK_INDEX });
            if let Some(channel) = state.on_demand.get_mut(&key) {
                channel.end(id, outcome);
            }
        }
        let attempts = self.attempts.iter().filter_map(Attempt::next_attempt);
        attempts.chain(state.acceptor.next_deadline()).min()
    }

    /// Establishes the connections that peers have made to channels with connections on demand.
    fn take_accepted(&self, state: &mut QueueState<P>) {
        let QueueState { accepted, on_demand, closed, .. } = state;
        let is_mine = |to: &Destination<P::Key>| match on_demand.get(&to.key) {
            Some(channel) => to.index == 0 && channel.peers.contains_key(&to.world_rank),
            None => to.index < ASK_INDEX && closed.contains(&to.key),
        };
        let taken: Vec<_> = accepted.extract_if(.., |to, _| is_mine(to)).collect();
        for (to, accepted) in taken {
            let established = self.protocol.establish(to.key, accepted);
            // Otherwise the channel is closed, and so is the connection.
            let Some(channel) = on_demand.get_mut(&to.key) else { continue };
            let Some(id) = channel.peers.get(&to.world_rank).map(|peer| peer.id) else { continue };
            match established {
                Ok(connection) => channel.end(id, Ok(connection)),
                // The peer has given up or will try again.
                Err(error) => tracing::debug!(rank = id.rank, %error, "cannot use an accepted connection"),
            }
        }
    }

    /// Begins the attempts that this rank has requested or peers have asked for, and drops those
    /// that are not needed any more.
    fn begin(&mut self, state: &mut QueueState<P>) {
        let QueueState { accepted, on_demand, closed, .. } = state;
        self.attempts.retain(|attempt| {
            let peer =
                on_demand.get(&attempt.key).and_then(|channel| channel.peers.get(&attempt.id.world_rank));
            attempt.is_closed || peer.is_some_and(|peer| peer.state == PeerState::Connecting)
        });
        let own = self.own;
        accepted.retain(|&Destination { key, world_rank, index }, _| {
            if index != ASK_INDEX {
                return true;
            }
            if let Some(channel) = on_demand.get_mut(&key) {
                let Some(peer) = channel.peers.get_mut(&world_rank) else { return false };
                if peer.state == PeerState::Unconnected {
                    peer.state = PeerState::Connecting;
                    let connect = self.protocol.connect(key, peer.id, channel.peers_max);
                    self.attempts.push(Attempt {
                        key,
                        id: peer.id,
                        is_closed: false,
                        side: Side::Higher(connect),
                    });
                }
                return peer.state == PeerState::Connecting;
            }
            if closed.contains(&key) {
                let id = ConnId { rank: world_rank, world_rank };
                let is_new = |attempt: &Attempt<P>| (attempt.key, attempt.id) != (key, id);
                if self.attempts.iter().all(is_new) {
                    let side = Side::Higher(self.protocol.connect(key, id, 1));
                    self.attempts.push(Attempt { key, id, is_closed: true, side });
                }
            }
            true
        });
        for (&key, channel) in on_demand {
            let peers_max = channel.peers_max;
            let requested =
                |peer: &&mut OnDemandPeer| peer.is_requested && peer.state == PeerState::Unconnected;
            for peer in channel.peers.values_mut().filter(requested) {
                peer.state = PeerState::Connecting;
                let side = if peer.id.world_rank < own {
                    Side::Higher(self.protocol.connect(key, peer.id, peers_max))
                } else {
                    Side::Lower(self.protocol.ask(key, peer.id))
                };
                self.attempts.push(Attempt { key, id: peer.id, is_closed: false, side });
            }
        }
    }

    /// Advances all attempts. Returns those that have ended.
    fn advance(&mut self) -> Vec<(P::Key, ConnId, Result<P::Connection>)> {
        let now = simulation::now();
        let mut ended = Vec::new();
        self.attempts.retain_mut(|attempt| {
            let Some(outcome) = attempt.advance(now) else { return true };
            ended.push((attempt.key, attempt.id, outcome));
            false
        });
        ended
    }
}

impl<P: Protocol> Attempt<P> {
    /// Makes progress without blocking. Returns the outcome, if there is one.
    fn advance(&mut self, now: Instant) -> Option<Result<P::Connection>> {
        match &mut self.side {
            Side::Higher(connect) => connect.advance(now).transpose(),
            Side::Lower(ask) => match ask.advance(now) {
                Ok(Some(never)) => match never {},
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            },
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.side {
            Side::Higher(connect) => connect.poll_fd(),
            Side::Lower(ask) => ask.poll_fd(),
        }
    }

    fn next_attempt(&self) -> Option<Instant> {
        match &self.side {
            Side::Higher(connect) => connect.next_attempt(),
            Side::Lower(ask) => ask.next_attempt(),
        }
    }
}

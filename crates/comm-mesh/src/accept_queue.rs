//! Accepts connections on behalf of all channels, and keeps each until its channel is opened on
//! this rank.
//!
//! It has no thread of its own. A thread that opens a channel drives the acceptor for all channels
//! while it waits, and so does one that uses a channel to which peers may add connections, and the
//! dialer, if there is one: each notifies the others of connections for their channels.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use comm_core::{Error, Notify, Process, Result};

use crate::acceptor::Acceptor;
use crate::connect::ConnId;
use crate::mesh::{ASK_INDEX, Destination, Protocol};
use crate::on_demand::{Demand, OnDemandChannel, PeerState};

/// The limit on connections kept for channels that are not yet open on this rank, in a small world.
const UNOPENED_MAX: usize = 4096;
/// The limit in a large world, per connection that a channel can have.
const UNOPENED_PER_CONNECTION: usize = 16;

/// The connections that were accepted for the channels of one mesh.
#[derive(Debug)]
pub(crate) struct AcceptQueue<P: Protocol> {
    /// Readable when the acceptor can make progress.
    epoll: Arc<OwnedFd>,
    state: Mutex<QueueState<P>>,
}

#[derive(Debug)]
pub(crate) struct QueueState<P: Protocol> {
    pub(crate) acceptor: Acceptor<P>,
    /// Connections whose channel is not yet open on this rank, and those by which peers ask for
    /// connections.
    pub(crate) accepted: BTreeMap<Destination<P::Key>, P::Accepted>,
    openers: Vec<(P::Key, Arc<Notify>)>,
    /// The open channels that have connections on demand.
    pub(crate) on_demand: BTreeMap<P::Key, OnDemandChannel<P>>,
    /// Such channels that were closed. A peer that connects to one sees its end.
    pub(crate) closed: BTreeSet<P::Key>,
    /// Wakes the dialer, if there is one.
    pub(crate) dialer: Option<Arc<Notify>>,
}

impl<P: Protocol> AcceptQueue<P> {
    pub(crate) fn new(listeners: Vec<P::Listener>) -> Result<Self> {
        let acceptor = Acceptor::new(listeners).map_err(|error| Error::io("watch a listener", error))?;
        let epoll = acceptor.descriptor();
        let state = QueueState {
            acceptor,
            accepted: BTreeMap::new(),
            openers: Vec::new(),
            on_demand: BTreeMap::new(),
            closed: BTreeSet::new(),
            dialer: None,
        };
        Ok(Self { epoll, state: Mutex::new(state) })
    }

    /// No operation leaves the state inconsistent, so poisoning is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a channel that is about to be opened.
    pub(crate) fn register(self: &Arc<Self>, protocol: &Arc<P>, key: P::Key) -> Result<Registration<P>> {
        let notify = Arc::new(Notify::new()?);
        self.lock().openers.push((key, Arc::clone(&notify)));
        Ok(Registration {
            queue: Arc::clone(self),
            protocol: Arc::clone(protocol),
            key,
            notify,
            demand: None,
            process: Process::current(),
        })
    }
}

impl<P: Protocol> AsFd for AcceptQueue<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A channel for which connections are accepted: first those of its members, and once it is open
/// those that they add ([`Destination::index`] above zero). It also makes the connections of the
/// channel that are made on demand. Dropping it closes the connections of the channel that it did
/// not take.
#[derive(Debug)]
pub struct Registration<P: Protocol> {
    pub(crate) queue: Arc<AcceptQueue<P>>,
    protocol: Arc<P>,
    pub(crate) key: P::Key,
    /// Becomes readable when another thread has accepted or made a connection for this channel.
    pub(crate) notify: Arc<Notify>,
    /// The connections that are made on demand, if some are.
    pub(crate) demand: Option<Demand<P>>,
    /// The process to which the channel belongs.
    process: Process,
}

/// A connection that a member has added to an open channel.
#[derive(Debug)]
#[non_exhaustive]
pub struct Added<C> {
    /// The member's rank in the world.
    pub world_rank: usize,
    /// The number that the member has given to the connection.
    pub index: u8,
    /// The connection.
    pub connection: C,
}

impl<P: Protocol> Registration<P> {
    /// The protocol of the transport.
    #[must_use]
    pub fn protocol(&self) -> &P {
        &self.protocol
    }

    /// The key of the channel.
    #[must_use]
    pub const fn key(&self) -> P::Key {
        self.key
    }

    /// Accepts connections without blocking, and takes the expected ones of the channel that have
    /// arrived.
    pub(crate) fn accept(&self, expected: &[ConnId]) -> Result<Vec<(ConnId, P::Accepted)>> {
        let mut state = self.turn()?;
        let take = |id: &ConnId| {
            let destination = Destination { key: self.key, world_rank: id.world_rank, index: 0 };
            Some((*id, state.accepted.remove(&destination)?))
        };
        Ok(expected.iter().filter_map(take).collect())
    }

    /// Accepts connections without blocking, and takes those that members have added to the channel
    /// since it was opened. The first connection of such a member was made:
    /// [`Registration::take_made`] returns it, or has returned it.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no memory left.
    pub fn accept_added(&self) -> Result<Vec<Added<P::Connection>>> {
        let added: Vec<_> = {
            let mut state = self.turn()?;
            let QueueState { accepted, on_demand, .. } = &mut *state;
            let peers = on_demand.get(&self.key).map(|channel| &channel.peers);
            let is_connected = |rank: &usize| {
                let peer = peers.and_then(|peers| peers.get(rank));
                peer.is_none_or(|peer| peer.state == PeerState::Done)
            };
            let is_added = |to: &Destination<P::Key>| {
                to.key == self.key && (1..ASK_INDEX).contains(&to.index) && is_connected(&to.world_rank)
            };
            accepted.extract_if(.., |to, _| is_added(to)).collect()
        };
        let establish = |(to, accepted): (Destination<P::Key>, _)| {
            let Destination { world_rank, index, .. } = to;
            match self.protocol.establish(self.key, accepted) {
                Ok(connection) => Some(Added { world_rank, index, connection }),
                Err(error) => {
                    tracing::debug!(world_rank, index, %error, "cannot use an added connection");
                    None
                }
            }
        };
        Ok(added.into_iter().filter_map(establish).collect())
    }

    /// Lets the acceptor make progress.
    fn turn(&self) -> Result<MutexGuard<'_, QueueState<P>>> {
        // Cleared before the state is read, or a notification that arrives in between would be
        // lost.
        self.notify.clear();
        let mut state = self.queue.lock();
        let has_accepted =
            state.turn(&self.protocol).map_err(|error| Error::io("accept a connection", error))?;
        // The connections may be made on demand, and the listener has nothing left that would wake
        // the dialer.
        if let (true, Some(dialer)) = (has_accepted, &state.dialer) {
            dialer.notify();
        }
        Ok(state)
    }

    /// The descriptors that become readable when connections can be accepted or were accepted for
    /// this channel.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.queue.as_fd(), self.notify.as_fd()]
    }

    /// The time at which [`Registration::accept`] is due even if no descriptor is readable.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.queue.lock().acceptor.next_deadline()
    }

    /// Returns the reason why no connection can be accepted at present, if there is one.
    pub(crate) fn accept_error(&self) -> Option<Error> {
        let copy = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        let error = self.queue.lock().acceptor.accept_error().map(copy)?;
        Some(Error::io("accept connections from other ranks", error))
    }
}

impl<P: Protocol> Drop for Registration<P> {
    fn drop(&mut self) {
        // In a forked child, another thread may have held the lock.
        if !self.process.is_current() {
            return;
        }
        let mut state = self.queue.lock();
        state.openers.retain(|(_, notify)| !Arc::ptr_eq(notify, &self.notify));
        if let Some(demand) = &self.demand {
            // The dialer closes the connections.
            state.on_demand.remove(&self.key);
            state.closed.insert(self.key);
            demand.wake_dialer();
            return;
        }
        state.accepted.retain(|destination, _| destination.key != self.key);
        if state.openers.is_empty() && state.dialer.is_none() {
            // No thread drives their handshakes until the next channel is opened.
            state.acceptor.close_pending();
        }
    }
}

impl<P: Protocol> QueueState<P> {
    /// Lets the acceptor make progress, and keeps the connections that it has accepted. A later
    /// connection replaces an earlier one with the same destination, which the peer has abandoned.
    /// Returns whether any connection was accepted.
    pub(crate) fn turn(&mut self, protocol: &P) -> io::Result<bool> {
        let max = UNOPENED_MAX.max(protocol.connections_max() * UNOPENED_PER_CONNECTION);
        let capacity = max.saturating_sub(self.accepted.len());
        let accepted = self.acceptor.turn(protocol, capacity)?;
        let has_accepted = !accepted.is_empty();
        for accepted in accepted {
            let destination = protocol.destination(&accepted);
            for (_, notify) in self.openers.iter().filter(|(key, _)| *key == destination.key) {
                notify.notify();
            }
            self.accepted.insert(destination, accepted);
        }
        Ok(has_accepted)
    }
}

#[cfg(test)]
mod tests;

//! Connections of an open channel that are made when they are first used.
//!
//! In a group of many ranks, most pairs never send each other anything. So a rank requests the
//! connection to a peer when it first sends to it or receives from it. As for all connections, the
//! higher rank of a pair connects to the lower one. A lower rank that requests the connection asks
//! the higher one to do so, by a connection that stays open until then. So each pair makes one
//! connection, even if both request it at the same time.
//!
//! The [dialer](crate::dialer) of each rank does the work, so a peer need not be in a call.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comm_core::{Error, Notify, Result};

use crate::accept_queue::Registration;
use crate::connect::ConnId;
use crate::dialer::DialerThread;
use crate::mesh::Protocol;

/// The outcomes of attempts to connect.
type Outcomes<C> = Vec<(ConnId, Result<C>)>;

/// The connections of an open channel, as the dialer sees them.
#[derive(Debug)]
pub(crate) struct OnDemandChannel<P: Protocol> {
    /// The peers by their ranks in the world.
    pub(crate) peers: BTreeMap<usize, OnDemandPeer>,
    /// The number of peers that the channel connects, now or on demand.
    pub(crate) peers_max: usize,
    outcomes: Outcomes<P::Connection>,
    has_outcomes: Arc<AtomicBool>,
    notify: Arc<Notify>,
}

/// A peer to which the connection is made on demand.
#[derive(Debug)]
pub(crate) struct OnDemandPeer {
    pub(crate) id: ConnId,
    /// Whether this rank has requested the connection.
    pub(crate) is_requested: bool,
    pub(crate) state: PeerState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerState {
    Unconnected,
    /// The dialer connects to the peer, or asks it to connect.
    Connecting,
    /// The outcome is known.
    Done,
}

impl<P: Protocol> OnDemandChannel<P> {
    /// Ends the attempts to connect to a peer.
    pub(crate) fn end(&mut self, id: ConnId, outcome: Result<P::Connection>) {
        let Some(peer) = self.peers.get_mut(&id.world_rank) else { return };
        if peer.state == PeerState::Done {
            return;
        }
        if outcome.is_err() && !peer.is_requested {
            // The peer has asked for a connection, and cannot be reached any more.
            peer.state = PeerState::Unconnected;
            return;
        }
        peer.state = PeerState::Done;
        self.outcomes.push((id, outcome));
        self.has_outcomes.store(true, Ordering::Release);
        self.notify.notify();
    }
}

/// The connections of an open channel, as its user sees them.
#[derive(Debug)]
pub(crate) struct Demand<P: Protocol> {
    dialer: Arc<DialerThread<P>>,
    has_outcomes: Arc<AtomicBool>,
    /// By rank on the channel; `None` for ranks to which no connection is made on demand.
    peers: Vec<Option<(ConnId, Request)>>,
}

#[derive(Debug)]
enum Request {
    Unused,
    Pending,
    Connected,
    Failed(Error),
}

impl<P: Protocol> Demand<P> {
    pub(crate) fn wake_dialer(&self) {
        self.dialer.wake();
    }
}

impl<P: Protocol> Registration<P> {
    /// Lets this rank and these peers, in ascending order, make connections on demand.
    /// `connected` is the number of other peers.
    pub(crate) fn connect_on_demand(
        &mut self,
        peers: &[ConnId],
        connected: usize,
        dialer: Arc<DialerThread<P>>,
    ) {
        let has_outcomes = Arc::new(AtomicBool::new(false));
        let peer = |&id: &ConnId| {
            (id.world_rank, OnDemandPeer { id, is_requested: false, state: PeerState::Unconnected })
        };
        let channel = OnDemandChannel {
            peers: peers.iter().map(peer).collect(),
            peers_max: connected + peers.len(),
            outcomes: Vec::new(),
            has_outcomes: Arc::clone(&has_outcomes),
            notify: Arc::clone(&self.notify),
        };
        let mut by_rank: Vec<_> = Vec::new();
        by_rank.resize_with(peers.last().map_or(0, |last| last.rank + 1), || None);
        for &id in peers {
            by_rank[id.rank] = Some((id, Request::Unused));
        }
        self.queue.lock().on_demand.insert(self.key(), channel);
        // Peers may have connected or asked already.
        dialer.wake();
        self.demand = Some(Demand { dialer, has_outcomes, peers: by_rank });
    }

    /// Whether some connections of the channel are made on demand.
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.demand.is_some()
    }

    /// Makes the descriptors unreadable until there is something new. Call it before
    /// [`Registration::take_made`].
    pub fn clear(&self) {
        self.notify.clear();
    }

    /// Requests the connection to a rank of the channel. Returns `false` if that is no rank to
    /// which a connection is made on demand. May be called often.
    ///
    /// # Errors
    /// The reason why there is no connection, once it cannot be made.
    pub fn request(&mut self, rank: usize) -> Result<bool> {
        let Some(demand) = &mut self.demand else { return Ok(false) };
        let Some(Some((id, request))) = demand.peers.get_mut(rank) else { return Ok(false) };
        match request {
            Request::Unused => {
                if let Some(channel) = self.queue.lock().on_demand.get_mut(&self.key)
                    && let Some(peer) = channel.peers.get_mut(&id.world_rank)
                {
                    peer.is_requested = true;
                }
                *request = Request::Pending;
                demand.dialer.wake();
                Ok(true)
            }
            Request::Pending | Request::Connected => Ok(true),
            Request::Failed(error) => Err(error.clone()),
        }
    }

    /// Whether the connection to a rank cannot be made, as far as [`Registration::take_made`] has
    /// returned.
    #[must_use]
    pub fn has_failed(&self, rank: usize) -> bool {
        let peer = self.demand.as_ref().and_then(|demand| demand.peers.get(rank)?.as_ref());
        matches!(peer, Some((_, Request::Failed(_))))
    }

    /// Takes the connections that were made since the last call, with the ranks of the peers on the
    /// channel. Costs one load if there are none. Returns `None` instead of a connection that
    /// cannot be made.
    pub fn take_made(&mut self) -> Vec<(usize, Option<P::Connection>)> {
        let Some(demand) = &mut self.demand else { return Vec::new() };
        if !demand.has_outcomes.load(Ordering::Acquire) {
            return Vec::new();
        }
        let outcomes = {
            let mut state = self.queue.lock();
            demand.has_outcomes.store(false, Ordering::Relaxed);
            state.on_demand.get_mut(&self.key).map(|channel| mem::take(&mut channel.outcomes))
        };
        let mut made = Vec::new();
        for (id, outcome) in outcomes.unwrap_or_default() {
            let Some(Some((_, request))) = demand.peers.get_mut(id.rank) else { continue };
            match outcome {
                Ok(connection) => {
                    *request = Request::Connected;
                    made.push((id.rank, Some(connection)));
                }
                Err(error) => {
                    *request = Request::Failed(error);
                    made.push((id.rank, None));
                }
            }
        }
        made
    }
}

#[cfg(test)]
mod tests;

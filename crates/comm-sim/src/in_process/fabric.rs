//! The fabric of ranks that are threads, which open channels in the memory of the process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use comm_core::{
    Allocation, ChannelId, During, Error, Fabric, Group, GroupId, Link, LinkModel, Loss, Membership, Result,
    Until,
};

use super::pipe::Pipe;
use super::{InProcessConfig, InProcessTransport};
use crate::endpoint::Endpoint;

/// The fabric of one rank. After it is dropped, the other ranks no longer wait for this rank.
#[derive(Debug)]
pub struct InProcessFabric {
    group: Group,
    hub: Arc<Hub>,
}

/// The state that all ranks share.
#[derive(Debug)]
struct Hub {
    config: InProcessConfig,
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Debug)]
struct HubState {
    /// The ranks that dropped their fabric.
    gone: Vec<bool>,
    /// Channels for which some member is missing, by identifier and members: different lists never
    /// match. A complete channel is removed, so that its identifier can be used again.
    pending: HashMap<(ChannelId, Vec<usize>), PendingChannel>,
    /// All open channels, which are queried for unreleased bytes.
    open: Vec<Weak<Channel>>,
}

#[derive(Debug)]
struct PendingChannel {
    channel: Arc<Channel>,
    /// The members that wait now, by their ranks in the channel.
    present: Vec<bool>,
    /// The members that have ever waited: one that gave up is not named as missing.
    arrived: Vec<bool>,
}

/// The state of a channel that all its ranks share.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    /// The ranks of the members in the world, in the order of their ranks in the channel.
    members: Vec<usize>,
    pub(super) config: InProcessConfig,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// The queue from `a` to `b` is at `a * size + b`.
    pipes: Vec<Mutex<Pipe>>,
    /// The number of broken streams, so that no sleeping rank misses one.
    pub(super) breaks: AtomicU64,
}

impl Channel {
    fn new(id: ChannelId, config: &InProcessConfig, members: &[usize]) -> Result<Self> {
        let size = members.len();
        Ok(Self {
            id,
            members: members.to_vec(),
            config: config.clone(),
            endpoints: (0..size).map(|_| Endpoint::new().map(Arc::new)).collect::<Result<_>>()?,
            pipes: (0..size * size).map(|_| Mutex::default()).collect(),
            breaks: AtomicU64::new(0),
        })
    }

    /// Returns the number of unreleased bytes that a rank of the world has sent.
    fn unreleased(&self, rank: usize) -> u64 {
        let Some(rank) = self.members.iter().position(|&member| member == rank) else { return 0 };
        let peers = (0..self.members.len()).filter(|&peer| peer != rank);
        peers.map(|to| self.pipe(rank, to).unreleased(self.config.release)).sum()
    }

    /// Returns the queue from one rank to another, locked.
    pub(super) fn pipe(&self, from: usize, to: usize) -> MutexGuard<'_, Pipe> {
        lock(&self.pipes[from * self.endpoints.len() + to])
    }
}

/// Locks a mutex, and ignores poisoning: a panicking test leaves no inconsistent state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InProcessFabric {
    /// Creates the fabrics of `n` ranks, in rank order; each is to be moved into a thread.
    #[must_use]
    pub fn create(n: usize) -> Vec<Self> {
        Self::with_config(n, &InProcessConfig::default())
    }

    /// Creates the fabrics of `n` ranks over queues that behave as `config` specifies.
    #[must_use]
    pub fn with_config(n: usize, config: &InProcessConfig) -> Vec<Self> {
        let config = InProcessConfig { capacity: config.capacity.max(1), ..config.clone() };
        let state = HubState { gone: vec![false; n], pending: HashMap::new(), open: Vec::new() };
        let hub = Arc::new(Hub { config, state: Mutex::new(state), changed: Condvar::new() });
        let group = |rank| Group::new(GroupId::WORLD, Membership { rank, size: n }).ok();
        (0..n).filter_map(group).map(|group| Self { group, hub: Arc::clone(&hub) }).collect()
    }

    /// Returns the number of bytes that this rank's open channels have accepted and not released.
    /// Tests assert that it is zero after a call, to find an executor that does not wait for the
    /// release of its sends.
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        let channels: Vec<_> = lock(&self.hub.state).open.iter().filter_map(Weak::upgrade).collect();
        channels.iter().map(|channel| channel.unreleased(self.group.rank())).sum()
    }

    /// Adds a member, given by its rank in the channel. The last one completes the channel.
    fn enter(
        &self,
        state: &mut HubState,
        id: ChannelId,
        members: &[usize],
        rank: usize,
    ) -> Result<Arc<Channel>> {
        let size = members.len();
        let name = (id, members.to_vec());
        let pending_channel = match state.pending.entry(name.clone()) {
            Entry::Occupied(pending_channel) => pending_channel.into_mut(),
            Entry::Vacant(vacant) => {
                let channel = Arc::new(Channel::new(id, &self.hub.config, members)?);
                vacant.insert(PendingChannel {
                    channel,
                    present: vec![false; size],
                    arrived: vec![false; size],
                })
            }
        };
        if std::mem::replace(&mut pending_channel.present[rank], true) {
            return Err(Error::Internal(format!("rank {rank} opens {id:?} twice at once")));
        }
        pending_channel.arrived[rank] = true;
        let channel = Arc::clone(&pending_channel.channel);
        if pending_channel.present.iter().all(|&present| present) {
            state.pending.remove(&name);
            state.open.retain(|channel| channel.strong_count() > 0);
            state.open.push(Arc::downgrade(&channel));
            self.hub.changed.notify_all();
        }
        Ok(channel)
    }

    /// Waits until the channel is complete or can no longer be completed.
    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, HubState>,
        channel: &Arc<Channel>,
        group: Group,
        until: Until<'_>,
    ) -> Result<()> {
        let started = self.now();
        loop {
            // The check uses other channels, so it must run without the lock.
            drop(state);
            let expired = until.check_expired(self.now());
            state = lock(&self.hub.state);
            let Some(pending_channel) = pending_channel(&state, channel) else { return Ok(()) };
            let absent = missing(&pending_channel.present);
            let now = self.now();
            let failure = if let Some(&peer) = absent.iter().find(|&&rank| state.gone[channel.members[rank]])
            {
                Error::PeerLost { peer, during: During::Rendezvous, loss: Loss::Closed }
            } else if let Err(error) = expired {
                error
            } else if let Ok(true) = expired {
                let never = missing(&pending_channel.arrived);
                let waiting_for = if never.is_empty() { absent } else { never };
                Error::Timeout { waiting_for, after: now - started, during: During::Rendezvous }
            } else {
                let waited = self
                    .hub
                    .changed
                    .wait_timeout(state, until.next_check(now).saturating_duration_since(now));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            withdraw(&mut state, channel, group.rank());
            return Err(failure);
        }
    }
}

/// Removes a member that gives up, so that the others do not count it as present.
fn withdraw(state: &mut HubState, channel: &Channel, rank: usize) {
    let name = (channel.id, channel.members.clone());
    if let Some(pending_channel) = state.pending.get_mut(&name) {
        pending_channel.present[rank] = false;
        if !pending_channel.present.contains(&true) {
            state.pending.remove(&name);
        }
    }
}

/// Returns the pending entry of this channel; `None` if it is complete.
fn pending_channel<'a>(state: &'a HubState, channel: &Arc<Channel>) -> Option<&'a PendingChannel> {
    let name = (channel.id, channel.members.clone());
    state.pending.get(&name).filter(|pending_channel| Arc::ptr_eq(&pending_channel.channel, channel))
}

/// Returns the ranks for which `here` is false.
fn missing(here: &[bool]) -> Vec<usize> {
    here.iter().enumerate().filter(|(_, here)| !**here).map(|(rank, _)| rank).collect()
}

impl Fabric for InProcessFabric {
    type Channel = InProcessTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns an estimate of the cost of queues with locks.
    fn links(&self) -> LinkModel {
        LinkModel::uniform(Link { latency: 1e-6, overhead: 5e-7, per_byte: 2e-10 }, 1e-10)
    }

    /// This transport always copies.
    fn shared_buffer(&self, _bytes: usize) -> Option<Allocation> {
        None
    }

    fn open_among(
        &self,
        channel: ChannelId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<InProcessTransport> {
        let group = self.group.subgroup(channel.group, members)?;
        let mut state = lock(&self.hub.state);
        let channel = self.enter(&mut state, channel, members, group.rank())?;
        self.wait(state, &channel, group, until)?;
        Ok(InProcessTransport::new(group, channel))
    }
}

impl Drop for InProcessFabric {
    fn drop(&mut self) {
        lock(&self.hub.state).gone[self.group.rank()] = true;
        self.hub.changed.notify_all();
    }
}

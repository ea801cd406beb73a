//! Where the threads meet and open channels.

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

/// One rank's ability to open channels to the other threads. Dropping it tells the others not to wait for this rank.
#[derive(Debug)]
pub struct InProcessFabric {
    group: Group,
    hub: Arc<Hub>,
}

/// Where all ranks meet.
#[derive(Debug)]
struct Hub {
    config: InProcessConfig,
    state: Mutex<HubState>,
    changed: Condvar,
}

#[derive(Debug)]
struct HubState {
    /// Which ranks dropped their channels.
    gone: Vec<bool>,
    /// Channels for which some member is missing, by name and members: unlike lists never meet. A complete one is taken
    /// out, so that its name can be used again.
    meetings: HashMap<(ChannelId, Vec<usize>), Meeting>,
    /// Every open channel, to ask for unreleased bytes.
    open: Vec<Weak<Channel>>,
}

#[derive(Debug)]
struct Meeting {
    channel: Arc<Channel>,
    /// By rank of the channel.
    present: Vec<bool>,
    /// Who was ever present: a rank that gave up waiting is not the one to blame.
    came: Vec<bool>,
}

/// What all ranks share of one channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    /// The ranks of the world, in the order of their ranks of the channel.
    members: Vec<usize>,
    pub(super) config: InProcessConfig,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// The queue from `a` to `b` is at `a * size + b`.
    pipes: Vec<Mutex<Pipe>>,
    /// How often a stream broke, so that no sleeper misses it.
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

    /// How many bytes a rank of the world has sent that are not released.
    fn unreleased(&self, rank: usize) -> u64 {
        let Some(rank) = self.members.iter().position(|&member| member == rank) else { return 0 };
        let peers = (0..self.members.len()).filter(|&peer| peer != rank);
        peers.map(|to| self.pipe(rank, to).unreleased(self.config.release)).sum()
    }

    /// The queue from one rank to another, locked.
    pub(super) fn pipe(&self, from: usize, to: usize) -> MutexGuard<'_, Pipe> {
        lock(&self.pipes[from * self.endpoints.len() + to])
    }
}

/// A panicking test leaves no half-made state behind a lock, so poison carries no news.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InProcessFabric {
    /// The channels of `n` ranks, in rank order, to be moved into a thread each.
    #[must_use]
    pub fn create(n: usize) -> Vec<Self> {
        Self::with_config(n, &InProcessConfig::default())
    }

    /// The channels of `n` ranks over queues that behave as `config` says.
    #[must_use]
    pub fn with_config(n: usize, config: &InProcessConfig) -> Vec<Self> {
        let config = InProcessConfig { capacity: config.capacity.max(1), ..config.clone() };
        let state = HubState { gone: vec![false; n], meetings: HashMap::new(), open: Vec::new() };
        let hub = Arc::new(Hub { config, state: Mutex::new(state), changed: Condvar::new() });
        let group = |rank| Group::new(GroupId::WORLD, Membership { rank, size: n }).ok();
        (0..n).filter_map(group).map(|group| Self { group, hub: Arc::clone(&hub) }).collect()
    }

    /// How many bytes this rank's open channels have accepted and not released. Zero whenever a call has returned: an
    /// executor that forgets to wait for the release of what it sent is found by asking.
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        let channels: Vec<_> = lock(&self.hub.state).open.iter().filter_map(Weak::upgrade).collect();
        channels.iter().map(|channel| channel.unreleased(self.group.rank())).sum()
    }

    /// Takes a seat, given by its rank of the channel; the last to come completes the channel.
    fn enter(
        &self,
        state: &mut HubState,
        id: ChannelId,
        members: &[usize],
        rank: usize,
    ) -> Result<Arc<Channel>> {
        let size = members.len();
        let name = (id, members.to_vec());
        let meeting = match state.meetings.entry(name.clone()) {
            Entry::Occupied(meeting) => meeting.into_mut(),
            Entry::Vacant(vacant) => {
                let channel = Arc::new(Channel::new(id, &self.hub.config, members)?);
                vacant.insert(Meeting { channel, present: vec![false; size], came: vec![false; size] })
            }
        };
        if std::mem::replace(&mut meeting.present[rank], true) {
            return Err(Error::Internal(format!("rank {rank} opens {id:?} twice at once")));
        }
        meeting.came[rank] = true;
        let channel = Arc::clone(&meeting.channel);
        if meeting.present.iter().all(|&present| present) {
            state.meetings.remove(&name);
            state.open.retain(|channel| channel.strong_count() > 0);
            state.open.push(Arc::downgrade(&channel));
            self.hub.changed.notify_all();
        }
        Ok(channel)
    }

    /// Waits until the channel is complete, or it is certain that it will not be.
    fn wait<'s>(
        &'s self,
        mut state: MutexGuard<'s, HubState>,
        channel: &Arc<Channel>,
        group: Group,
        until: Until<'_>,
    ) -> Result<()> {
        let started = self.now();
        loop {
            // The check looks at other channels, which needs no lock of ours.
            drop(state);
            let goes_on = until.goes_on(self.now());
            state = lock(&self.hub.state);
            let Some(meeting) = meeting(&state, channel) else { return Ok(()) };
            let absent = missing(&meeting.present);
            let now = self.now();
            let failure = if let Some(&peer) = absent.iter().find(|&&rank| state.gone[channel.members[rank]])
            {
                Error::PeerLost { peer, during: During::Rendezvous, loss: Loss::Closed }
            } else if let Err(error) = goes_on {
                error
            } else if let Ok(false) = goes_on {
                let never = missing(&meeting.came);
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

/// Gives up a seat, so that the others do not take its rank for present.
fn withdraw(state: &mut HubState, channel: &Channel, rank: usize) {
    let name = (channel.id, channel.members.clone());
    if let Some(meeting) = state.meetings.get_mut(&name) {
        meeting.present[rank] = false;
        if !meeting.present.contains(&true) {
            state.meetings.remove(&name);
        }
    }
}

/// Where ranks wait for each other to open this channel; `None` if it is complete.
fn meeting<'a>(state: &'a HubState, channel: &Arc<Channel>) -> Option<&'a Meeting> {
    let name = (channel.id, channel.members.clone());
    state.meetings.get(&name).filter(|meeting| Arc::ptr_eq(&meeting.channel, channel))
}

/// The ranks for which `here` is false.
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

    /// An estimate of what queues behind locks cost.
    fn links(&self) -> LinkModel {
        LinkModel::uniform(Link { latency: 1e-6, overhead: 5e-7, per_byte: 2e-10 }, 1e-10)
    }

    /// Nothing is lent.
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

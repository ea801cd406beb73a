//! Fabrics of ranks that run as threads in virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Allocation, ChannelId, During, Error, Fabric, Group, GroupId, Link, LinkModel, Loss, Membership, Result,
    Scheduler, Until,
};

use super::turns::{Action, NetworkScheduler, Turns};
use super::world::World;
use super::{FaultPlan, NetworkTransport, SharedWorld};

/// The fabric of one rank of [`run`].
#[derive(Debug)]
pub struct NetworkFabric {
    group: Group,
    world: SharedWorld,
}

/// A channel that is being opened.
#[derive(Debug)]
pub(super) struct Opening {
    id: ChannelId,
    members: Vec<usize>,
    /// The members that have arrived, by their ranks in the channel.
    present: Vec<bool>,
    channel: usize,
    /// The first failure, which all members report.
    failure: Option<Error>,
}

/// The virtual time of a run, for the thread of one rank.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    rank: usize,
    world: SharedWorld,
}

impl VirtualClock {
    /// Returns the virtual time since the start of the run.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.lock().now()
    }

    /// Returns whether this rank has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.world.lock().is_dead(self.rank)
    }

    /// Stops the calling thread for a duration in virtual time, or until this rank dies.
    pub fn sleep(&self, duration: Duration) {
        self.world.pause(self.rank, duration);
    }

    /// Kills this rank: bytes that have not left it are lost.
    pub fn die(&self) {
        self.world.lock().die(self.rank);
    }

    /// Calls `action` before the operation with this number, counted from 1, on this rank's
    /// transports. It replaces an earlier action that has not been called.
    pub fn before_operation(&self, operation: u64, action: impl FnOnce() + Send + 'static) {
        let action: Action = Box::new(action);
        let earlier = self.world.lock().ranks[self.rank].operations.action.replace((operation, action));
        // Dropped after the world is unlocked: the action may own a transport, whose drop locks the
        // world.
        drop(earlier);
    }
}

/// Runs `rank` on a thread per rank, in virtual time, and returns the results in rank order. One
/// thread runs at a time, until it sleeps or until an operation on a transport passes the turn to
/// another; both choices depend on the seed. So each run can be reproduced from its seed and plan.
///
/// Ranks must wait for each other only in transports and in [`VirtualClock::sleep`]. Further
/// threads of a rank take part if they are added to [`Fabric::scheduler`], as those of
/// [`Worker`](comm_core::Worker) are; no other threads may use its transports. After a rank has
/// died, every operation fails on all of its threads.
///
/// # Panics
/// If a rank panics; see [`run_each`](crate::run_each). If ranks still wait after a week of virtual
/// time, because they are deadlocked.
pub fn run<T: Send>(
    n: usize,
    seed: u64,
    plan: &FaultPlan,
    rank: impl Fn(NetworkFabric, VirtualClock) -> T + Sync,
) -> Vec<T> {
    let world = SharedWorld::new(n, seed, plan);
    world.lock().turns = Some(Turns::new(seed));
    let group = |rank| Group::new(GroupId::WORLD, Membership { rank, size: n }).ok();
    let groups: Vec<_> = (0..n).filter_map(group).collect();
    let results = crate::run_each(groups, |group| {
        let turns = TurnGuard { rank: group.rank(), world: world.clone() };
        world.begin(group.rank());
        let clock = VirtualClock { rank: group.rank(), world: world.clone() };
        let result = rank(NetworkFabric { group, world: world.clone() }, clock);
        drop(turns);
        result
    });
    let deadlocked = world.lock().turns.take().map(|turns| turns.deadlocked).unwrap_or_default();
    assert!(deadlocked.is_empty(), "ranks {deadlocked:?} are deadlocked (seed {seed})");
    results
}

/// Ends the turns of a rank when it is dropped, which includes a panic of the rank.
struct TurnGuard {
    rank: usize,
    world: SharedWorld,
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.world.end(self.rank);
    }
}

impl World {
    /// Adds a member to a channel that is being opened. Returns the number of the channel.
    fn enter(&mut self, id: ChannelId, members: &[usize], rank: usize) -> usize {
        let same = |opening: &Opening| opening.id == id && opening.members == members;
        let at = self.openings.iter().position(same).unwrap_or_else(|| {
            let channel = self.add_channel(members.to_vec());
            let (members, present) = (members.to_vec(), vec![false; members.len()]);
            self.openings.push(Opening { id, members, present, channel, failure: None });
            self.openings.len() - 1
        });
        self.openings[at].present[rank] = true;
        let channel = self.openings[at].channel;
        if !self.openings[at].present.contains(&false) && self.openings[at].failure.is_none() {
            self.openings.remove(at);
            self.wake_all();
        }
        channel
    }

    /// Lets a member leave the opening. The others do not notice this, and wait for it.
    fn abandon(&mut self, channel: usize, member: usize) {
        let opening = self.openings.iter_mut().find(|opening| opening.channel == channel);
        if let Some(opening) = opening.filter(|opening| opening.failure.is_none()) {
            opening.present[member] = false;
        }
    }

    /// Makes the opening fail for all members, including those that arrive later. Returns the first
    /// failure.
    fn fail(&mut self, channel: usize, error: Error) -> Error {
        let opening = self.openings.iter_mut().find(|opening| opening.channel == channel);
        let first = opening.map(|opening| opening.failure.get_or_insert_with(|| error.clone()).clone());
        self.wake_all();
        first.unwrap_or(error)
    }
}

impl Opening {
    /// Returns the members that have not arrived, by their ranks in the channel.
    fn missing(&self) -> Vec<usize> {
        let ranks = 0..self.members.len();
        ranks.filter(|&rank| !self.present[rank]).collect()
    }
}

impl NetworkFabric {
    /// Waits until all members have entered the channel.
    fn wait(&self, (channel, own): (usize, usize), members: &[usize], until: Until<'_>) -> Result<()> {
        let started = self.now();
        loop {
            // The check uses other channels, so it must run before the world is locked.
            let expired = until.check_expired(self.now());
            let mut world = self.world.lock();
            if expired.is_err() {
                world.abandon(channel, own);
            }
            let expired = expired?;
            let Some(opening) = world.openings.iter().find(|opening| opening.channel == channel) else {
                return Ok(());
            };
            if let Some(failure) = &opening.failure {
                return Err(failure.clone());
            }
            let missing = opening.missing();
            // A death causes others to leave, so deaths are checked first.
            let dead = (0..members.len()).find(|&rank| world.is_dead(members[rank]));
            let gone = || missing.iter().copied().find(|&rank| world.ranks[members[rank]].gone);
            if let Some(peer) = dead.or_else(gone) {
                let error = Error::PeerLost { peer, during: During::Rendezvous, loss: Loss::Closed };
                return Err(world.fail(channel, error));
            }
            let now = world.instant();
            if expired {
                let after = now - started;
                let error = Error::Timeout { waiting_for: missing, after, during: During::Rendezvous };
                return Err(world.fail(channel, error));
            }
            drop(world);
            let sleep = until.next_check(now).saturating_duration_since(now);
            self.world
                .sleep(self.group.rank(), sleep)
                .map_err(|error| self.world.lock().fail(channel, error))?;
        }
    }
}

impl Fabric for NetworkFabric {
    type Channel = NetworkTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        self.world.lock().instant()
    }

    fn links(&self) -> LinkModel {
        let plan = &self.world.lock().plan;
        let link = Link {
            latency: plan.latency.as_secs_f64(),
            overhead: 0.0,
            per_byte: 1.0 / plan.bytes_per_second.max(1) as f64,
        };
        LinkModel::uniform(link, 1e-10)
    }

    /// This transport always copies.
    fn shared_buffer(&self, _bytes: usize) -> Option<Allocation> {
        None
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        Some(Arc::new(NetworkScheduler { rank: self.group.rank(), world: self.world.clone() }))
    }

    fn open_among(&self, id: ChannelId, members: &[usize], until: Until<'_>) -> Result<NetworkTransport> {
        let rank = self.group.rank();
        let group = self.group.subgroup(id.group, members)?;
        self.world.begin_operation(rank);
        let channel = self.world.lock().enter(id, members, group.rank());
        self.wait((channel, group.rank()), members, until)?;
        NetworkTransport::new(group, self.world.clone(), channel, rank)
    }
}

impl Drop for NetworkFabric {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.ranks[self.group.rank()].gone = true;
        world.wake_all();
    }
}

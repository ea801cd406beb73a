//! Fabrics of ranks that run as threads in virtual time.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Allocation, ChannelId, ChannelKind, During, Error, Fabric, Group, GroupId, Link, LinkModel, Loss,
    Membership, Result, Scheduler, Until,
};

use super::sockets::address_of;
use super::turns::{Action, NetworkScheduler};
use super::world::World;
use super::{Incident, NetworkTransport, SharedWorld};

/// The interval at which a rank that waits for a channel calls its watch.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// The number of ranks up to which all of them wake whenever some have a reason. In a larger run,
/// this would take a time that grows with the square of their number.
const WAKES_ALL_MAX: usize = 64;

/// A check that ends the wait for a channel when it fails.
type Check = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The fabric of one rank of [`run`](super::run).
pub struct NetworkFabric {
    group: Group,
    /// The ranks of the group in the network.
    members: Arc<[usize]>,
    /// The number of the rendezvous in which they met.
    meeting: u64,
    watch: Option<Check>,
    world: SharedWorld,
}

/// A channel that is being opened.
#[derive(Debug)]
pub(super) struct Opening {
    id: (u64, ChannelId),
    /// The members, by their ranks in the network.
    members: Arc<[usize]>,
    /// The members that have arrived, by their ranks in the channel.
    present: Vec<bool>,
    /// The number of members that have not arrived.
    missing: usize,
    channel: usize,
    /// The first failure, which all members report.
    failure: Option<Error>,
}

/// The virtual time of a run, for the thread of one rank.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    pub(super) rank: usize,
    pub(super) world: SharedWorld,
}

impl VirtualClock {
    pub(super) const fn new(rank: usize, world: SharedWorld) -> Self {
        Self { rank, world }
    }

    /// Lets a fault happen now. If it stops this rank, returns when the rank continues.
    pub fn inject(&self, incident: Incident) {
        self.world.inject(self.rank, incident);
    }

    /// Adds an entry of this rank to the log.
    pub fn log(&self, text: impl Into<String>) {
        let mut world = self.world.lock();
        let now = world.now();
        world.log.add(now, Some(self.rank), text.into());
    }

    /// Returns the time for which this rank was stopped or slow, and by which its clock jumped.
    #[must_use]
    pub fn delayed(&self) -> Duration {
        self.world.lock().ranks[self.rank].delayed
    }

    /// Returns the number of operations of this rank on transports and on the store.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations_of(self.rank)
    }

    /// Returns the number of operations of any rank.
    #[must_use]
    pub fn operations_of(&self, rank: usize) -> u64 {
        self.world.lock().ranks.get(rank).map_or(0, |rank| rank.operations.count())
    }

    /// Returns the number of transports of this rank that were not dropped.
    #[must_use]
    pub fn open_transports(&self) -> usize {
        self.world.lock().ranks[self.rank].open_transports
    }

    /// Returns the faults until now, and their times after the start.
    #[must_use]
    pub fn incidents(&self) -> Vec<(Duration, Incident)> {
        self.world.lock().log.happened.clone()
    }

    /// Returns the address of this rank, at which it can listen.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        address_of(self.rank)
    }

    /// Returns whether all other ranks have ended.
    #[must_use]
    pub fn is_last(&self) -> bool {
        let world = self.world.lock();
        (0..world.ranks.len()).all(|rank| rank == self.rank || world.threads.is_finished(rank))
    }

    /// Returns the virtual time since the start of the run.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.world.lock().now()
    }

    /// Returns the fabric of a group of these ranks, this one among them, that have met in another
    /// rendezvous than the ranks of the run. `meeting` is its number, above zero, which no other
    /// rendezvous has. If a rank fails while this one waits for it to open a channel, `watch` may
    /// report that.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this rank is not in the group.
    pub fn fabric(&self, members: Vec<usize>, meeting: u64, watch: Option<Check>) -> Result<NetworkFabric> {
        let rank = members.iter().position(|&member| member == self.rank).unwrap_or(members.len());
        let group = Group::new(GroupId::WORLD, Membership { rank, size: members.len() })?;
        Ok(NetworkFabric { group, members: members.into(), meeting, watch, world: self.world.clone() })
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

    /// Starts this rank again after it has died, as another process on its host. What the former
    /// process had must be dropped. Returns whether it could be started: not if it lives, or its
    /// host has lost its power.
    pub fn restart(&self) -> bool {
        self.world.lock().restart(self.rank)
    }

    /// Kills this rank: bytes that have not left it are lost.
    pub fn die(&self) {
        self.inject(Incident::Death { rank: self.rank });
    }

    /// Calls `action` before the operation with this number, counted from 1, on this rank's
    /// transports.
    pub fn before_operation(&self, operation: u64, action: impl FnOnce() + Send + 'static) {
        let action: Action = Box::new(action);
        self.world.lock().ranks[self.rank].operations.actions.push((operation, action));
    }
}

impl Opening {
    fn set_present(&mut self, member: usize, is_present: bool) {
        let was_present = std::mem::replace(&mut self.present[member], is_present);
        self.missing = self.missing + usize::from(was_present) - usize::from(is_present);
    }
}

impl World {
    /// Adds a member to a channel that is being opened. Returns the number of the channel.
    fn enter(&mut self, id: (u64, ChannelId), members: Arc<[usize]>, rank: usize) -> usize {
        let same = |opening: &Opening| {
            let is_equal = || *opening.members == *members;
            opening.id == id && (Arc::ptr_eq(&opening.members, &members) || is_equal())
        };
        let at = self.openings.iter().position(same).unwrap_or_else(|| {
            let channel = self.add_channel(Arc::clone(&members), id.1.kind);
            let (missing, present) = (members.len(), vec![false; members.len()]);
            self.openings.push(Opening { id, members, present, missing, channel, failure: None });
            self.openings.len() - 1
        });
        self.openings[at].set_present(rank, true);
        let channel = self.openings[at].channel;
        self.complete(channel);
        channel
    }

    /// Completes an opening if all members have arrived and can reach each other.
    fn complete(&mut self, channel: usize) {
        let Some(at) = self.openings.iter().position(|opening| opening.channel == channel) else { return };
        let Opening { members, missing, failure, .. } = &self.openings[at];
        let is_cut = |&a: &usize| members.iter().any(|&b| self.is_cut(a, b));
        if failure.is_none() && *missing == 0 && (self.cuts.is_empty() || !members.iter().any(is_cut)) {
            let members = self.openings.remove(at).members;
            self.wake_members(&members);
        }
    }

    /// Wakes the members of an opening. In a small run, all ranks wake, most of them for no reason,
    /// as they may in reality.
    fn wake_members(&mut self, members: &[usize]) {
        if self.ranks.len() <= WAKES_ALL_MAX {
            self.threads.wake_all();
        } else {
            members.iter().for_each(|&rank| self.threads.wake_rank(rank));
        }
    }

    /// Wakes the ranks that wait for a member of a rendezvous, and are to find that it has gone.
    fn wake_openers(&mut self, meeting: u64) {
        let openings = self.openings.iter().filter(|opening| opening.id.0 == meeting);
        let members: Vec<usize> = openings.flat_map(|opening| opening.members.iter().copied()).collect();
        self.wake_members(&members);
    }

    /// Lets a member leave the opening. The others do not notice this, and wait for it.
    fn abandon(&mut self, channel: usize, member: usize) {
        let opening = self.openings.iter_mut().find(|opening| opening.channel == channel);
        if let Some(opening) = opening.filter(|opening| opening.failure.is_none()) {
            opening.set_present(member, false);
        }
    }

    /// Makes the opening fail for all members, including those that arrive later. Returns the first
    /// failure.
    fn fail(&mut self, channel: usize, error: Error) -> Error {
        let opening = self.openings.iter_mut().find(|opening| opening.channel == channel);
        let Some(Opening { failure, members, .. }) = opening else { return error };
        let (first, members) = (failure.get_or_insert(error).clone(), Arc::clone(members));
        self.wake_members(&members);
        first
    }
}

impl NetworkFabric {
    /// Creates the fabric of all ranks, which are `members`.
    pub(super) const fn new(group: Group, members: Arc<[usize]>, world: SharedWorld) -> Self {
        Self { group, members, meeting: 0, watch: None, world }
    }

    /// Returns the rank in the network of this process.
    fn rank(&self) -> usize {
        self.members[self.group.rank()]
    }

    /// Returns the members that have not arrived, or that this rank cannot reach.
    fn missing<'a>(&self, world: &'a World, opening: &'a Opening) -> impl Iterator<Item = usize> + use<'a> {
        let rank = self.rank();
        let Opening { members, present, .. } = opening;
        (0..members.len()).filter(move |&member| !present[member] || world.is_cut(rank, members[member]))
    }

    /// Returns a member that will not arrive.
    fn lost_member(&self, world: &World, opening: &Opening) -> Option<usize> {
        if !world.has_lost_ranks {
            return None;
        }
        // A death causes others to leave, so deaths are checked first.
        let members = &opening.members;
        let dead = (0..members.len()).find(|&member| world.is_known_dead(members[member]));
        let has_gone = |member: &usize| world.ranks[members[*member]].gone_from.contains(&self.meeting);
        dead.or_else(|| self.missing(world, opening).find(has_gone))
    }

    /// Opens a channel of a group of these ranks of the network.
    fn open_group(
        &self,
        kind: ChannelKind,
        group: Group,
        members: Arc<[usize]>,
        until: Until<'_>,
    ) -> Result<NetworkTransport> {
        let (rank, id) = (self.rank(), ChannelId { group: group.id(), kind });
        self.world.begin_operation(rank);
        let channel = self.world.lock().enter((self.meeting, id), members, group.rank());
        self.wait((channel, group.rank()), until)?;
        NetworkTransport::new(group, self.world.clone(), channel, rank)
    }

    /// Waits until all members have entered the channel.
    fn wait(&self, (channel, own): (usize, usize), until: Until<'_>) -> Result<()> {
        let started = self.now();
        loop {
            // The check uses other channels, so it must run before the world is locked.
            let watched = self.watch.as_ref().map_or(Ok(()), |watch| watch());
            let expired = watched.and_then(|()| until.check_expired(self.now()));
            let mut world = self.world.lock();
            if expired.is_err() {
                world.abandon(channel, own);
            }
            let expired = expired?;
            world.complete(channel);
            let Some(opening) = world.openings.iter().find(|opening| opening.channel == channel) else {
                return Ok(());
            };
            if let Some(failure) = &opening.failure {
                return Err(failure.clone());
            }
            let rank = self.rank();
            if let Some(peer) = self.lost_member(&world, opening) {
                let error = Error::PeerLost { peer, during: During::Rendezvous, loss: Loss::Closed };
                return Err(world.fail(channel, error));
            }
            let now = world.instant_of(rank);
            if expired {
                let (waiting_for, after) = (self.missing(&world, opening).collect(), now - started);
                let error = Error::Timeout { waiting_for, after, during: During::Rendezvous };
                return Err(world.fail(channel, error));
            }
            drop(world);
            let sleep = until.next_check(now).saturating_duration_since(now);
            let sleep = if self.watch.is_some() { sleep.min(WATCH_INTERVAL) } else { sleep };
            // If this rank has died, the others find that out themselves.
            self.world.sleep(rank, sleep)?;
        }
    }
}

impl Fabric for NetworkFabric {
    type Channel = NetworkTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        self.world.lock().instant_of(self.rank())
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
        Some(Arc::new(NetworkScheduler { rank: self.rank(), world: self.world.clone() }))
    }

    fn open_among(&self, id: ChannelId, members: &[usize], until: Until<'_>) -> Result<NetworkTransport> {
        let group = self.group.subgroup(id.group, members)?;
        let members = members.iter().map(|&member| self.members[member]).collect();
        self.open_group(id.kind, group, members, until)
    }

    fn open(&self, id: ChannelId, deadline: Instant) -> Result<NetworkTransport> {
        let membership = Membership { rank: self.group.rank(), size: self.group.size() };
        let group = Group::new(id.group, membership)?;
        self.open_group(id.kind, group, Arc::clone(&self.members), deadline.into())
    }
}

impl fmt::Debug for NetworkFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, members, meeting, .. } = self;
        let mut shown = f.debug_struct("NetworkFabric");
        shown
            .field("group", group)
            .field("members", members)
            .field("meeting", meeting)
            .finish_non_exhaustive()
    }
}

impl Drop for NetworkFabric {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.ranks[self.rank()].gone_from.push(self.meeting);
        world.has_lost_ranks = true;
        world.wake_openers(self.meeting);
    }
}

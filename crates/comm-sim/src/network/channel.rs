//! The links between the members of a channel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comm_core::{ChannelKind, Group, GroupId, Membership};

use super::link::Link;

/// The size of the largest channel whose members all learn that one has left, even without a
/// connection to it. In a larger one, this would take a time that grows with the square of the
/// number of members; there they learn of it when they connect.
const TELLS_ALL_MAX: usize = 64;

/// The links between the members of a channel. Only those that were used take memory.
#[derive(Debug)]
pub(super) struct ChannelLinks {
    /// The ranks of the members in the network, in the order of their ranks in the channel.
    pub(super) members: Arc<[usize]>,
    /// The links from each member, by their receivers.
    links: Vec<BTreeMap<usize, Box<Link>>>,
    /// The members with which each one is connected. `None` if all are connected with all.
    connected: Option<Vec<BTreeSet<usize>>>,
    /// The members that have closed it.
    pub(super) closed: Vec<bool>,
    /// The number of streams of each member that have opened or broken.
    pub(super) changes: Vec<u64>,
}

impl ChannelLinks {
    pub(super) fn new(members: Arc<[usize]>, kind: ChannelKind, on_demand: bool) -> Self {
        let size = members.len();
        let watched = |rank: usize| {
            let group = Group::new(GroupId::WORLD, Membership { rank, size }).ok();
            let distances = group.into_iter().flat_map(|group| group.watched_distances());
            distances.map(|distance| (rank + distance) % size).collect()
        };
        let connected = |rank| if kind == ChannelKind::Control { watched(rank) } else { BTreeSet::new() };
        Self {
            links: (0..size).map(|_| BTreeMap::new()).collect(),
            connected: on_demand.then(|| (0..size).map(connected).collect()),
            closed: vec![false; size],
            changes: vec![0; size],
            members,
        }
    }

    /// Returns whether two members are connected.
    pub(super) fn is_open(&self, a: usize, b: usize) -> bool {
        b < self.members.len() && self.connected.as_ref().is_none_or(|peers| peers[a].contains(&b))
    }

    /// Returns the first member from this number on with which a member is connected.
    pub(super) fn next_open(&self, member: usize, from: usize) -> Option<usize> {
        match &self.connected {
            Some(connected) => connected[member].range(from..).next().copied(),
            None => (from..self.members.len()).find(|&other| other != member),
        }
    }

    /// Connects two members. Returns false if they are connected already.
    pub(super) fn open(&mut self, a: usize, b: usize) -> bool {
        let is_valid = b < self.members.len();
        let Some(connected) = self.connected.as_mut().filter(|_| is_valid) else { return false };
        connected[b].insert(a);
        connected[a].insert(b)
    }

    /// Returns whether all members learn that one has left, and not only those with which it is
    /// connected.
    pub(super) fn tells_all(&self) -> bool {
        self.connected.is_none() || self.members.len() <= TELLS_ALL_MAX
    }

    /// Returns the other members that learn at once that this one has left.
    pub(super) fn told(&self, member: usize) -> Vec<usize> {
        match &self.connected {
            Some(connected) if !self.tells_all() => connected[member].iter().copied().collect(),
            _ => (0..self.members.len()).filter(|&other| other != member).collect(),
        }
    }

    /// Returns the members to which this one has a link that was used.
    pub(super) fn receivers(&self, member: usize) -> Vec<usize> {
        self.links[member].keys().copied().collect()
    }

    pub(super) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.links[from].entry(to).or_default()
    }

    /// Returns the number of this rank of the network in the channel.
    pub(super) fn position(&self, rank: usize) -> Option<usize> {
        // In most channels, they are the same.
        if self.members.get(rank) == Some(&rank) {
            return Some(rank);
        }
        self.members.iter().position(|&member| member == rank)
    }
}

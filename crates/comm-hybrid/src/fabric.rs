//! What rendezvous yields: channels between all ranks, each in the way in which they reach each other.

use std::time::Instant;

use comm_core::{Allocation, ChannelId, Error, Fabric, Group, GroupId, LinkModel, Result, Store, Until};
use comm_rendezvous::Rendezvous;
use comm_tcp::TcpFabric;

use crate::both::Both;
use crate::paths::{Path, Paths};
use crate::rendezvous::{self, Met, RendezvousConfig};
use crate::transport::HybridTransport;

/// Opens channels between the ranks of a job: through shared memory between those of one host, over TCP between the others.
///
/// That holds for every kind of channel. A channel uses what its members need: one whose members are all on one host opens no
/// socket between hosts. Ranks may open channels in any order, and from several threads. A channel of one name is opened
/// once.
///
/// There is no thread in the background: connections are taken while some channel is being opened.
#[derive(Debug)]
pub struct HybridFabric {
    group: Group,
    met: Met,
}

impl HybridFabric {
    /// Meets the other ranks through a store, in which each leaves a few short values under keys that begin with
    /// `comm/`. A world of one uses neither store nor socket. Ranks that are all on one host have no TCP sockets but
    /// that of the store.
    ///
    /// Ranks share memory if they are processes of one user and one boot of a kernel, in the same namespaces for
    /// network and users, and can make memory to share: see [`comm_shm::HostId`]. A rank that can share none is reached
    /// over TCP by everybody, which [`HybridFabric::obstacle`] and a line in the log tell.
    ///
    /// Who can read the store can share memory with this process if it belongs to the same user.
    /// A secret is asked of those who come over TCP.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]. The settings that it compares include the transport and whether there is a secret.
    /// [`Error::Invalid`] for a setting that cannot be used, [`Error::Io`] if the store or a port cannot be had.
    pub fn rendezvous(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        if config.tcp.member.world_size == 1 {
            let group = Group::new(GroupId::WORLD, config.tcp.member.membership())?;
            return Ok(Self { group, met: rendezvous::alone(config)? });
        }
        Self::join(store, config).map(|(_, fabric)| fabric)
    }

    /// Meets the other ranks as [`HybridFabric::rendezvous`] does, in a world of more than one. Returns the rendezvous too,
    /// in which ranks may tell each other more.
    ///
    /// # Errors
    /// As [`HybridFabric::rendezvous`].
    pub fn join<'s>(store: &'s dyn Store, config: &RendezvousConfig) -> Result<(Rendezvous<'s>, Self)> {
        let group = Group::new(GroupId::WORLD, config.tcp.member.membership())?;
        let (rendezvous, met) = rendezvous::meet(store, config)?;
        Ok((rendezvous, Self { group, met }))
    }

    /// In which way the ranks reach each other.
    #[must_use]
    pub const fn paths(&self) -> &Paths {
        &self.met.paths
    }

    /// Why this rank can share memory with nobody, if that is so.
    #[must_use]
    pub const fn obstacle(&self) -> Option<&Error> {
        self.met.memory.obstacle()
    }

    /// Opens a channel that needs both: neither waits for the other, so that a loss on one side is heard at once.
    fn open_both(
        &self,
        tcp: &TcpFabric,
        channel: ChannelId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<HybridTransport> {
        let is_far = |rank: usize| self.paths().to(rank) == Some(Path::Tcp);
        let both = (self.met.memory.begin(channel, members)?, tcp.begin(channel, members, &is_far)?);
        let (near, far) = comm_mesh::complete(both, until, self.met.watch.as_deref())?;
        let is_far = members.iter().map(|rank| is_far(*rank)).collect();
        Ok(Both::new(near, far, is_far)?.into())
    }
}

impl Fabric for HybridFabric {
    type Channel = HybridTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The estimates of shared memory within a host and of TCP between hosts; `commctl perf --calibrate` measures. Where
    /// hosts hold unlike numbers of ranks, or not consecutive ones, every rank counts as a host.
    fn links(&self) -> LinkModel {
        let Met { memory, tcp, paths, .. } = &self.met;
        let Some(tcp) = tcp else { return memory.links() };
        if !paths.any(Path::SharedMemory) {
            return tcp.links();
        }
        let ranks_per_host = paths.ranks_per_host().unwrap_or(1);
        let LinkModel { within, staged_from, .. } = memory.links();
        LinkModel { within, ranks_per_host, staged_from, ..tcp.links() }
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<HybridTransport> {
        // What no group can have is refused before anybody is looked up.
        self.group.subgroup(channel.group, members)?;
        let any = |path| members.iter().any(|rank| self.paths().to(*rank) == Some(path));
        match &self.met.tcp {
            Some(tcp) if any(Path::Tcp) && any(Path::SharedMemory) => {
                self.open_both(tcp, channel, members, until)
            }
            Some(tcp) if any(Path::Tcp) => Ok(tcp.open_among(channel, members, until)?.into()),
            _ => Ok(self.met.memory.open_among(channel, members, until)?.into()),
        }
    }

    /// Memory that neighbours read in place; to others, what lies in it is sent as from any other.
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.met.memory.allocate(bytes)
    }

    /// As above.
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        self.met.memory.shared_buffer(bytes)
    }
}

//! The result of a rendezvous, which opens channels between all ranks over the transport to each
//! peer.

use std::time::Instant;

use comm_core::{Allocation, ChannelId, Error, Fabric, Group, GroupId, LinkModel, Result, Store, Until};
use comm_rendezvous::Rendezvous;
use comm_tcp::TcpFabric;

use crate::both::Both;
use crate::paths::{Path, Paths};
use crate::rendezvous::{self, Connected, RendezvousConfig};
use crate::transport::HybridTransport;

/// Opens channels between the ranks of a job: through shared memory within a host, over TCP between
/// hosts.
///
/// This applies to every kind of channel. A channel uses only the transports that its members need:
/// one whose members are all on one host opens no socket between hosts. Ranks may open channels in
/// any order, and from several threads. A channel id is opened once.
///
/// Connections are accepted while a channel is being opened. In a channel of many ranks, a pair is
/// connected when it first exchanges something, by a thread per transport; otherwise there is no
/// background thread.
#[derive(Debug)]
pub struct HybridFabric {
    group: Group,
    connected: Connected,
}

impl HybridFabric {
    /// Finds the other ranks through a store, in which each writes a few short values under keys
    /// that begin with `comm/`. A world of one uses neither store nor socket. If all ranks are on
    /// one host, they have no TCP sockets except that of the store.
    ///
    /// Ranks share memory if they run as the same user on the same boot of one kernel, in the same
    /// network and user namespaces, and can create shared memory; see [`comm_shm::HostId`]. A rank
    /// that cannot share memory is reached over TCP by all others; [`HybridFabric::obstacle`] and a
    /// line in the log give the reason.
    ///
    /// A process that can read the store can share memory with this one if it belongs to the same
    /// user. The secret protects only TCP connections.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]. The settings that it compares include the transport and whether
    /// there is a secret. [`Error::Invalid`] if a setting is unusable, [`Error::Io`] if the store
    /// or a port is not available.
    pub fn rendezvous(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        if config.tcp.member.world_size == 1 {
            let group = Group::new(GroupId::WORLD, config.tcp.member.membership())?;
            return Ok(Self { group, connected: rendezvous::alone(config)? });
        }
        Self::join(store, config).map(|(_, fabric)| fabric)
    }

    /// Like [`HybridFabric::rendezvous`], in a world of more than one rank. Also returns the
    /// rendezvous, through which ranks may exchange more values.
    ///
    /// # Errors
    /// As [`HybridFabric::rendezvous`].
    pub fn join<'s>(store: &'s dyn Store, config: &RendezvousConfig) -> Result<(Rendezvous<'s>, Self)> {
        let group = Group::new(GroupId::WORLD, config.tcp.member.membership())?;
        let (rendezvous, connected) = rendezvous::connect(store, config)?;
        Ok((rendezvous, Self { group, connected }))
    }

    /// Returns the transport to each rank.
    #[must_use]
    pub const fn paths(&self) -> &Paths {
        &self.connected.paths
    }

    /// Returns the reason why this rank cannot share memory with any other, if there is one.
    #[must_use]
    pub const fn obstacle(&self) -> Option<&Error> {
        self.connected.memory.obstacle()
    }

    /// Opens channels over both transports concurrently, so that a loss on either is detected
    /// immediately.
    fn open_both(
        &self,
        tcp: &TcpFabric,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<HybridTransport>> {
        let is_over_tcp = |rank: usize| self.paths().to(rank) == Some(Path::Tcp);
        let begin = |channel: &ChannelId| {
            let memory = self.connected.memory.begin(*channel, members)?;
            Ok((memory, tcp.begin(*channel, members, &is_over_tcp)?))
        };
        let openings = channels.iter().map(begin).collect::<Result<Vec<_>>>()?;
        let opened = comm_mesh::complete(openings, until, self.connected.watch.as_deref())?;
        let is_over_tcp: Box<[bool]> = members.iter().map(|rank| is_over_tcp(*rank)).collect();
        let both = |(shm, tcp)| Ok(Both::new(shm, tcp, is_over_tcp.clone())?.into());
        opened.into_iter().map(both).collect()
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

    /// Returns the estimates for shared memory within a host and for TCP between hosts; `commctl
    /// perf --calibrate` measures them. If the hosts have different numbers of ranks, or their
    /// ranks are not consecutive, every rank counts as its own host.
    fn links(&self) -> LinkModel {
        let Connected { memory, tcp, paths, .. } = &self.connected;
        let Some(tcp) = tcp else { return memory.links() };
        if !paths.any(Path::SharedMemory) {
            return tcp.links();
        }
        let ranks_per_host = paths.ranks_per_host().unwrap_or(1);
        let LinkModel { within, staged_from, .. } = memory.links();
        LinkModel { within, ranks_per_host, staged_from, ..tcp.links() }
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<HybridTransport> {
        let opened = self.open_all(&[channel], members, until)?.pop();
        opened.ok_or_else(|| Error::Internal("no channel was opened".into()))
    }

    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<HybridTransport>> {
        // Returns an error for an invalid list of members before any peer is looked up.
        self.group.subgroup(self.group.id(), members)?;
        let any = |path| members.iter().any(|rank| self.paths().to(*rank) == Some(path));
        match &self.connected.tcp {
            Some(tcp) if any(Path::Tcp) && any(Path::SharedMemory) => {
                self.open_both(tcp, channels, members, until)
            }
            Some(tcp) if any(Path::Tcp) => Ok(into_each(tcp.open_all(channels, members, until)?)),
            _ => Ok(into_each(self.connected.memory.open_all(channels, members, until)?)),
        }
    }

    /// Returns memory that ranks on this host read in place. It is sent to other ranks like any
    /// buffer.
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.connected.memory.allocate(bytes)
    }

    /// Returns memory that ranks on this host share.
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        self.connected.memory.shared_buffer(bytes)
    }
}

fn into_each<T: Into<HybridTransport>>(opened: Vec<T>) -> Vec<HybridTransport> {
    opened.into_iter().map(T::into).collect()
}

//! Channels between all ranks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    Allocation, ChannelId, Fabric, Group, GroupId, Link, LinkModel, Membership, Result, Scheduler, Store,
    Until, simulation,
};
use comm_mesh::{Mesh, Opening};
use comm_rendezvous::{Rendezvous, Watch};

use crate::config::TcpConfig;
use crate::endpoint::TcpEndpoint;
use crate::identity::Identity;
use crate::mesh::TcpProtocol;
use crate::protection::ProtectionConfig;
use crate::rendezvous::RendezvousConfig;
use crate::transport::TcpTransport;

/// Opens channels between ranks of a job over TCP.
///
/// Each channel has its own sockets, one for each pair of ranks: a rank connects to the members
/// with lower ranks in the world, and accepts connections from those with higher ranks. In a
/// channel of many ranks ([`TcpConfig::full_mesh_max`]), this happens when a pair first exchanges
/// something. Later both may add sockets ([`TcpConfig::sockets_per_peer`]). A connection for a
/// channel that this rank has not opened yet waits until it does, so ranks may open channels in any
/// order and from several threads. Each channel can be opened once.
///
/// Connections, including those for other channels, are accepted while a channel is being opened,
/// and while one that carries data waits. A channel of many ranks starts a thread that connects
/// them; otherwise there is no background thread. Connections from
/// processes that are not members are rejected with a warning, and do not delay any rank.
#[derive(Debug)]
pub struct TcpFabric {
    mesh: Mesh<TcpProtocol>,
    watch: Option<Arc<Watch>>,
}

impl TcpFabric {
    /// Finds the other ranks through a store, in which each rank writes a few short values under
    /// keys that begin with `comm/`. A world of one uses neither store nor socket.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]. The settings that it compares include the transport and whether
    /// there is a secret. [`Error::Invalid`](comm_core::Error::Invalid) if a setting is invalid,
    /// [`Error::Io`](comm_core::Error::Io) if the store cannot be reached or no port can be bound.
    pub fn rendezvous(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        if config.member.world_size == 1 {
            config.check()?;
            return Self::alone(&config.tcp);
        }
        Self::join(store, config).map(|(_, fabric)| fabric)
    }

    /// Finds the other ranks as [`TcpFabric::rendezvous`] does, in a world of more than one rank.
    /// Also returns the rendezvous, through which ranks may exchange more data.
    ///
    /// # Errors
    /// As [`TcpFabric::rendezvous`].
    pub fn join<'s>(store: &'s dyn Store, config: &RendezvousConfig) -> Result<(Rendezvous<'s>, Self)> {
        comm_rendezvous::connect(store, config.member_over("tcp"), TcpEndpoint::bind(config))
    }

    /// Creates the fabric of ranks that have completed the rendezvous.
    pub(crate) const fn new(mesh: Mesh<TcpProtocol>, watch: Option<Arc<Watch>>) -> Self {
        Self { mesh, watch }
    }

    /// Returns the channels of a world of one, without a store.
    ///
    /// # Errors
    /// As [`Group::new`], which a rank 0 of 1 always satisfies.
    pub fn alone(config: &TcpConfig) -> Result<Self> {
        let group = Group::new(GroupId::WORLD, Membership { rank: 0, size: 1 })?;
        let identity = Identity { rank: 0, job: 0, protection: ProtectionConfig::NONE, members: Vec::new() };
        Ok(Self::new(Mesh::new(group, TcpProtocol { identity, config: config.clone() }, None)?, None))
    }

    /// Returns the address of each rank, in the order of ranks. Empty in a world of one.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.mesh.protocol().identity.members.iter().map(|member| member.address).collect()
    }
}

/// For transports that reach some of the ranks by other means.
impl TcpFabric {
    /// Begins to open a channel as [`Fabric::open_among`] does. The channel connects this rank only
    /// with those ranks of the world for which `reaches` returns true; the two ranks of a pair must
    /// agree. A call of its transport for any other rank returns
    /// [`Error::Invalid`](comm_core::Error::Invalid), and an interest in such a rank has no effect.
    ///
    /// # Errors
    /// As [`Fabric::open_among`], for an invalid list of members.
    pub fn begin(
        &self,
        channel: ChannelId,
        members: &[usize],
        reaches: &dyn Fn(usize) -> bool,
    ) -> Result<impl Opening<Channel = TcpTransport> + use<>> {
        self.mesh.begin(channel, members, reaches)
    }
}

impl Fabric for TcpFabric {
    type Channel = TcpTransport;

    fn group(&self) -> Group {
        self.mesh.group()
    }

    fn now(&self) -> Instant {
        simulation::now()
    }

    /// Returns an estimate for loopback and ranks that poll instead of sleeping; measure a network
    /// with `commctl perf --calibrate`. Ranks with the same address are on one host.
    fn links(&self) -> LinkModel {
        let link = Link { latency: 6e-6, overhead: 4e-6, per_byte: 3.5e-10 };
        let hosts: Vec<IpAddr> = self.addresses().iter().map(SocketAddr::ip).collect();
        LinkModel::on_hosts(&hosts, link, 1e-10, self.mesh.protocol().identity.processors())
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        simulation::simulated().and_then(|system| system.scheduler())
    }

    /// Returns `None`: nothing is read in place.
    fn shared_buffer(&self, _bytes: usize) -> Option<Allocation> {
        None
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<TcpTransport> {
        comm_mesh::complete(self.begin(channel, members, &|_| true)?, until, self.watch.as_deref())
    }

    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<TcpTransport>> {
        let begin = |channel: &ChannelId| self.begin(*channel, members, &|_| true);
        let openings = channels.iter().map(begin).collect::<Result<Vec<_>>>()?;
        comm_mesh::complete(openings, until, self.watch.as_deref())
    }
}

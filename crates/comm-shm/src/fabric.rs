//! Channels between the ranks of a host.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{
    Allocation, ChannelId, Error, Fabric, Group, GroupId, Link, LinkModel, Membership, Refusal, Result,
    Store, Until,
};
use comm_mesh::{Mesh, Opening};
use comm_rendezvous::{Rendezvous, Watch};
use rustix::io::Errno;

use crate::config::SharedMemoryConfig;
use crate::endpoint::SharedMemoryEndpoint;
use crate::host::HostId;
use crate::identity::Identity;
use crate::mesh::SharedMemoryProtocol;
use crate::region::PeerAccess;
use crate::rendezvous::RendezvousConfig;
use crate::transport::SharedMemoryTransport;

/// The usual costs of a message, and of combining two blocks, among ranks that poll.
const LINK: Link = Link { latency: 1e-7, overhead: 2e-7, per_byte: 5e-11 };
const REDUCE: f64 = 2.5e-11;

/// Opens channels of shared memory between the ranks of a host.
///
/// Each channel has its own memory for each pair of ranks: the higher rank creates it, and passes
/// it to the other over a Unix socket, which stays open to show that both are alive. A connection
/// for a channel that this rank has not opened yet waits until it does, so ranks may open channels
/// in any order and from several threads. Each channel can be opened once.
///
/// Connections are accepted while a channel is being opened. In a channel of many ranks
/// ([`SharedMemoryConfig::full_mesh_max`]), a pair is connected when it first exchanges something,
/// by a thread that the first such channel starts; otherwise there is no background thread. All
/// shared memory is anonymous, so the system frees it however the processes exit.
#[derive(Debug)]
pub struct SharedMemoryFabric {
    pub(crate) mesh: Mesh<SharedMemoryProtocol>,
    /// The host of each rank. Empty in a world of one.
    pub(crate) hosts: Vec<Option<HostId>>,
    /// The reason this rank cannot share memory, if any.
    pub(crate) obstacle: Option<Error>,
    pub(crate) watch: Option<Arc<Watch>>,
}

impl SharedMemoryFabric {
    /// Finds the other ranks through a store, in which each rank writes a short value under a key
    /// that begins with `comm/`. All ranks must be on this host. A world of one uses neither store
    /// nor socket.
    ///
    /// Only processes of the same user that have access to the store can share memory with this
    /// one.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]; the settings that it compares include the transport.
    /// [`Error::Handshake`] with [`Refusal::OtherHost`] naming the ranks that are not on this host.
    /// [`Error::Invalid`] if a setting is invalid, [`Error::Io`] if the system has no sockets or
    /// memory left.
    pub fn rendezvous(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        if config.member.world_size == 1 {
            Group::new(GroupId::WORLD, config.member.membership())?;
            return Self::alone_with(&config.shm);
        }
        Self::join(store, config).map(|(_, fabric)| fabric)
    }

    /// Finds the other ranks as [`SharedMemoryFabric::rendezvous`] does, in a world of more than
    /// one rank. Also returns the rendezvous, through which ranks may exchange more data.
    ///
    /// # Errors
    /// As [`SharedMemoryFabric::rendezvous`].
    pub fn join<'s>(store: &'s dyn Store, config: &RendezvousConfig) -> Result<(Rendezvous<'s>, Self)> {
        let mut member = config.member.clone();
        member.settings.add("transport", "shm");
        member.settings.add("full_mesh_max", config.shm.full_mesh_max);
        let (rendezvous, fabric) =
            comm_rendezvous::connect(store, member, SharedMemoryEndpoint::open(config))?;
        // All ranks have the same records, so all of them fail or none does.
        if let Some(obstacle) = fabric.obstacle {
            return Err(obstacle);
        }
        let ranks: Vec<usize> = fabric.group().peers().filter(|rank| !fabric.is_neighbour(*rank)).collect();
        if ranks.is_empty() {
            return Ok((rendezvous, fabric));
        }
        let refusal = Refusal::OtherHost { ranks };
        Err(Error::Handshake { with: "the other ranks".into(), refusal })
    }

    /// Returns the channels of a world of one, without a store.
    ///
    /// # Errors
    /// As [`Group::new`], which a rank 0 of 1 always satisfies.
    pub fn alone() -> Result<Self> {
        Self::alone_with(&SharedMemoryConfig::default())
    }

    /// Returns the channels of a world of one, with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is invalid.
    pub fn alone_with(config: &SharedMemoryConfig) -> Result<Self> {
        config.check()?;
        let group = Group::new(GroupId::WORLD, Membership { rank: 0, size: 1 })?;
        let protocol = SharedMemoryProtocol::new(Identity::alone(0), config.clone());
        Ok(Self { mesh: Mesh::new(group, protocol, None)?, hosts: Vec::new(), obstacle: None, watch: None })
    }

    /// Returns the host of each rank, in the order of ranks; `None` for one that cannot share
    /// memory. Empty in a world of one.
    #[must_use]
    pub fn hosts(&self) -> &[Option<HostId>] {
        &self.hosts
    }

    /// Returns the reason this rank cannot share memory, if any: `/proc` is not mounted, or the
    /// system has no memory or sockets left.
    #[must_use]
    pub const fn obstacle(&self) -> Option<&Error> {
        self.obstacle.as_ref()
    }

    /// Whether this rank shares memory with another one.
    #[must_use]
    pub fn is_neighbour(&self, rank: usize) -> bool {
        let host = |rank: usize| self.hosts.get(rank).copied().flatten();
        rank != self.mesh.group().rank()
            && host(rank).is_some()
            && host(rank) == host(self.mesh.group().rank())
    }

    fn config(&self) -> &SharedMemoryConfig {
        &self.mesh.protocol().config
    }

    fn has_neighbours(&self) -> bool {
        self.mesh.group().peers().any(|rank| self.is_neighbour(rank))
    }

    /// Begins to open a channel as [`Fabric::open_among`] does. The channel connects this rank with
    /// its neighbours among the members. A call of its transport for any other rank returns
    /// [`Error::Invalid`], and an interest in such a rank has no effect.
    ///
    /// # Errors
    /// As [`Fabric::open_among`], for an invalid list of members.
    pub fn begin<'a>(
        &'a self,
        channel: ChannelId,
        members: &[usize],
    ) -> Result<impl Opening<Channel = SharedMemoryTransport> + use<'a>> {
        self.mesh.begin(channel, members, &|rank| self.is_neighbour(rank))
    }
}

impl Fabric for SharedMemoryFabric {
    type Channel = SharedMemoryTransport;

    fn group(&self) -> Group {
        self.mesh.group()
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns an estimate for ranks that poll instead of sleeping, with which the selected
    /// algorithms come close to the fastest ones on machines with 2 cores; `commctl perf
    /// --calibrate` measures the actual values.
    fn links(&self) -> LinkModel {
        let processors = self.mesh.protocol().identity.processors;
        let staged_from = self.config().has_regions().then_some(SharedMemoryConfig::STAGED_PIECE_BYTES);
        LinkModel { staged_from, ..LinkModel::on_hosts(&self.hosts, LINK, REDUCE, processors) }
    }

    fn open_among(
        &self,
        channel: ChannelId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<SharedMemoryTransport> {
        comm_mesh::complete(self.begin(channel, members)?, until, self.watch.as_deref())
    }

    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<SharedMemoryTransport>> {
        let begin = |channel: &ChannelId| self.begin(*channel, members);
        let openings = channels.iter().map(begin).collect::<Result<Vec<_>>>()?;
        comm_mesh::complete(openings, until, self.watch.as_deref())
    }

    /// Allocates memory that neighbours read in place, and into which they write the results that
    /// this rank receives from them; or memory on the heap if `bytes` is too small for that, the
    /// process may not open another file, or one of this size, or the kernel is older than 5.1.
    /// Channels of this fabric use it so; others copy it. It takes a file descriptor.
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        if !self.has_neighbours() || bytes < self.config().zero_copy_bytes.max(1) {
            return Allocation::on_heap(bytes);
        }
        match self.mesh.protocol().regions.allocate(
            bytes,
            self.config().region_piece_bytes(),
            PeerAccess::Write,
        ) {
            Ok(allocation) => Ok(allocation),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INVAL | Errno::MFILE | Errno::NFILE | Errno::FBIG) => Allocation::on_heap(bytes),
                _ => Err(Error::io(format!("allocate a buffer of {bytes} bytes"), error)),
            },
        }
    }

    /// Allocates memory that neighbours read in place, if there are any.
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        if !self.has_neighbours() || !self.config().has_regions() {
            return None;
        }
        let regions = &self.mesh.protocol().regions;
        let allocated = regions.allocate(bytes, SharedMemoryConfig::STAGED_PIECE_BYTES, PeerAccess::Read);
        let failed = |error: &_| tracing::debug!(%error, bytes, "cannot allocate a shared buffer: its bytes will be copied");
        allocated.inspect_err(failed).ok()
    }
}

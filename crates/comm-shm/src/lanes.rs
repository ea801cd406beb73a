//! What rendezvous yields: lanes between all ranks of a host.

use std::time::Instant;

use comm_core::{Error, Group, GroupId, LaneId, Lanes, Link, LinkModel, Refusal, Result, Store};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::config::SharedMemoryConfig;
use crate::hello::LaneKey;
use crate::host::HostId;
use crate::identity::Identity;
use crate::mesh::Opening;
use crate::reception::Reception;
use crate::record::{Member, Record};
use crate::rendezvous::{self, RendezvousConfig};
use crate::socket;
use crate::transport::SharedMemoryTransport;

/// Opens lanes of shared memory between the ranks of a host.
///
/// Each lane has memory of its own for each pair of ranks: the rank with the higher number makes it, and passes it to
/// the other one over a Unix socket, which stays open as a sign of life. A connection for a lane that is not yet opened
/// here waits until it is, so ranks may open lanes in any order, and from several threads. A lane of one name is
/// opened once.
///
/// There is no thread in the background: connections are taken while some lane is being opened. Nothing has a name in
/// a file system: however processes end, the system takes back all that they shared.
#[derive(Debug)]
pub struct SharedMemoryLanes {
    group: Group,
    config: SharedMemoryConfig,
    /// Where each rank is. Empty in a world of one.
    hosts: Vec<HostId>,
    /// `None` in a world of one, which has nobody to hear.
    mesh: Option<Mesh>,
}

#[derive(Debug)]
struct Mesh {
    identity: Identity,
    reception: Reception,
}

impl SharedMemoryLanes {
    /// Meets the other ranks through a store, in which each leaves a short value under a key that begins with `comm/`.
    /// All must be on this host. A world of one uses neither store nor socket.
    ///
    /// Who can read the store can share memory with this process if it belongs to the same user, and nobody else can.
    ///
    /// # Errors
    /// [`Error::Handshake`] with [`Refusal::OtherHost`] naming the ranks that are not on this host, with
    /// [`Refusal::DuplicateRank`] if another process has this rank already, or with [`Refusal::WorldSize`] if ranks
    /// disagree on how many there are. [`Error::Timeout`] naming the ranks that did not come in time.
    /// [`Error::Invalid`] for a setting that cannot be used, [`Error::Io`] if the system has no socket to give.
    pub fn rendezvous(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        let lanes = Self::rendezvous_of_neighbours(store, config)?;
        let ranks: Vec<usize> = lanes.group.peers().filter(|rank| !lanes.is_neighbour(*rank)).collect();
        if ranks.is_empty() {
            return Ok(lanes);
        }
        let refusal = Refusal::OtherHost { ranks };
        Err(Error::Handshake { with: "the other ranks".into(), refusal })
    }

    /// Meets the other ranks as [`SharedMemoryLanes::rendezvous`] does, wherever they are, for a transport that reaches
    /// those on other hosts in another way. Lanes connect this rank with its neighbours only: a call that concerns
    /// another rank is [`Error::Invalid`].
    ///
    /// # Errors
    /// As [`SharedMemoryLanes::rendezvous`], except for ranks that are elsewhere.
    pub fn rendezvous_of_neighbours(store: &dyn Store, config: &RendezvousConfig) -> Result<Self> {
        let group = Group::new(GroupId::WORLD, config.rank, config.world_size)?;
        config.shm.check()?;
        if config.world_size == 1 {
            return Ok(Self { group, config: config.shm.clone(), hosts: Vec::new(), mesh: None });
        }
        let own = Member { door: random_number()?, token: random_number()? };
        // The door is open before anybody hears of it.
        let listener = socket::open_door(own.door).map_err(|e| Error::io("listen on a Unix socket", e))?;
        let host = HostId::of_this_process()?;
        let record = Record { world_size: config.world_size, host, member: own };
        let records = rendezvous::meet(store, config, record)?;
        let members = records.iter().map(|record| (record.host == host).then_some(record.member));
        let identity = Identity { rank: config.rank, token: own.token, members: members.collect() };
        let hosts = records.iter().map(|record| record.host).collect();
        let mesh = Mesh { identity, reception: Reception::new(listener)? };
        Ok(Self { group, config: config.shm.clone(), hosts, mesh: Some(mesh) })
    }

    /// The lanes of a world of one, which has nobody to meet.
    ///
    /// # Errors
    /// As [`Group::new`], which a rank 0 of 1 always satisfies.
    pub fn alone() -> Result<Self> {
        let group = Group::new(GroupId::WORLD, 0, 1)?;
        Ok(Self { group, config: SharedMemoryConfig::default(), hosts: Vec::new(), mesh: None })
    }

    /// Where each rank is, in the order of ranks. Empty in a world of one.
    #[must_use]
    pub fn hosts(&self) -> &[HostId] {
        &self.hosts
    }

    /// Whether this rank shares memory with another one.
    #[must_use]
    pub fn is_neighbour(&self, rank: usize) -> bool {
        let own = self.hosts.get(self.group.rank());
        rank != self.group.rank() && own.is_some() && self.hosts.get(rank) == own
    }
}

fn random_number() -> Result<u128> {
    let mut bytes = [0; 16];
    // Up to 256 bytes come at once or not at all.
    match rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(16) => Ok(u128::from_le_bytes(bytes)),
        Ok(_) => Err(Error::io("draw a random number", Errno::IO.into())),
        Err(errno) => Err(Error::io("draw a random number", errno.into())),
    }
}

impl Lanes for SharedMemoryLanes {
    type Lane = SharedMemoryTransport;

    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    /// An estimate for ranks that look for messages instead of sleeping; `commctl perf --calibrate` measures.
    fn links(&self) -> LinkModel {
        let link = Link { latency: 1e-7, overhead: 1.5e-7, per_byte: 1e-10 };
        let ranks_per_host = LinkModel::regular_hosts(&self.hosts).unwrap_or(1);
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        LinkModel { ranks_per_host, processors, ..LinkModel::uniform(link, 1e-10) }
    }

    fn open_among(
        &self,
        lane: LaneId,
        members: &[usize],
        deadline: Instant,
    ) -> Result<SharedMemoryTransport> {
        let group = self.group.subgroup(lane.group, members)?;
        let connections = match &self.mesh {
            Some(Mesh { identity, reception }) => {
                let key = LaneKey::new(lane, members);
                let capacity = self.config.capacity(lane.kind, members.len());
                Opening::new(identity, reception, key, members, capacity)?.run(deadline)?
            }
            None => Vec::new(),
        };
        SharedMemoryTransport::new(group, connections)
    }
}

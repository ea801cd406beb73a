//! The listener and the record of a rank before the rendezvous.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use comm_core::{Error, Group, GroupId, Result};
use comm_mesh::Mesh;
use comm_rendezvous::{Endpoint, Processors, Watch, random_bytes};

use crate::config::SharedMemoryConfig;
use crate::fabric::SharedMemoryFabric;
use crate::host::HostId;
use crate::identity::Identity;
use crate::mesh::SharedMemoryProtocol;
use crate::record::{Address, Location, Record};
use crate::rendezvous::RendezvousConfig;
use crate::segment::Segment;
use crate::socket;

/// The listener of one rank, before the rendezvous.
///
/// A rank that cannot share memory has one too; see [`SharedMemoryFabric::obstacle`].
#[derive(Debug)]
pub struct SharedMemoryEndpoint {
    group: Group,
    config: SharedMemoryConfig,
    /// The location and listener of this rank, or the reason that it cannot share memory.
    own: Result<(Location, OwnedFd)>,
}

impl SharedMemoryEndpoint {
    /// Listens on a socket, and checks that memory can be shared.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is invalid.
    pub fn open(config: &RendezvousConfig) -> Result<Self> {
        let group = Group::new(GroupId::WORLD, config.member.membership())?;
        config.shm.check()?;
        Ok(Self { group, config: config.shm.clone(), own: listen(config) })
    }
}

impl Endpoint for SharedMemoryEndpoint {
    type Fabric = SharedMemoryFabric;

    fn record(&self) -> String {
        Record(self.own.as_ref().ok().map(|(location, _)| *location)).to_string()
    }

    /// The channels connect this rank with the ranks on its host; a call for any other rank returns
    /// [`Error::Invalid`].
    ///
    /// # Errors
    /// [`Error::Malformed`] for text that is not a record, [`Error::Io`] if the system has no file
    /// descriptors left.
    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<SharedMemoryFabric> {
        let Self { group, config, own } = self;
        let records = comm_rendezvous::parse_records(records, Record::parse)?;
        let hosts = records.iter().map(|record| record.0.map(|location| location.host)).collect();
        let (listener, identity, obstacle) = match own {
            Ok((own, listener)) => {
                let here = |record: &Record| record.0.filter(|location| location.host == own.host);
                let locations = records.iter().map(here);
                let members = locations.clone().map(|here| here.map(|location| location.member)).collect();
                let processors = locations.flatten().map(|location| location.processors);
                let processors = Processors::count_together(processors);
                let identity = Identity { rank: group.rank(), token: own.member.token, members, processors };
                (Some(listener), identity, None)
            }
            Err(obstacle) => (None, Identity::alone(group.rank()), Some(obstacle)),
        };
        let mesh = Mesh::new(group, SharedMemoryProtocol::new(identity, config), listener)?;
        Ok(SharedMemoryFabric { mesh, hosts, obstacle, watch })
    }
}

/// Listens on a socket before other ranks know its name, and checks that memory can be shared.
fn listen(config: &RendezvousConfig) -> Result<(Location, OwnedFd)> {
    let host = HostId::of_this_process()?;
    let host = config.host_id.as_ref().map_or(host, |name| host.with_name(name));
    let random = || random_bytes().map(u128::from_ne_bytes).map_err(|e| Error::io("read a random number", e));
    let member = Address { listener: random()?, token: random()? };
    let listener = socket::listen(member.listener).map_err(|e| Error::io("listen on a Unix socket", e))?;
    Segment::create(rustix::param::page_size()).map_err(|e| Error::io("allocate shared memory", e))?;
    Ok((Location { host, member, processors: Processors::of_this_thread() }, listener))
}

//! What a rank has before it meets the others: a socket, and a record that says where it is.

use std::os::fd::OwnedFd;

use comm_core::{Error, Group, GroupId, Membership, Result};
use comm_mesh::Mesh;

use crate::config::SharedMemoryConfig;
use crate::host::HostId;
use crate::identity::Identity;
use crate::lanes::SharedMemoryLanes;
use crate::mesh::SharedMemoryProtocol;
use crate::random;
use crate::record::{Member, Place, Record};
use crate::rendezvous::{self, RendezvousConfig};
use crate::segment::Segment;
use crate::socket;

/// A listening socket of one rank, of which the other ranks are still to be told.
///
/// A rank that can share no memory has one too, which says so: [`SharedMemoryLanes::obstacle`].
#[derive(Debug)]
pub struct SharedMemoryEndpoint {
    group: Group,
    config: SharedMemoryConfig,
    /// Where this rank listens, or why it can share memory with nobody.
    own: Result<(Place, OwnedFd)>,
}

impl SharedMemoryEndpoint {
    /// Listens on a socket, and makes sure that there is memory to share.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting that cannot be used.
    pub fn open(config: &RendezvousConfig) -> Result<Self> {
        let group = Group::new(GroupId::WORLD, Membership { rank: config.rank, size: config.world_size })?;
        config.shm.check()?;
        Ok(Self { group, config: config.shm.clone(), own: listen(config) })
    }

    /// What the other ranks must know of this one, as a line of text.
    #[must_use]
    pub fn record(&self) -> String {
        Record(self.own.as_ref().ok().map(|(place, _)| *place)).to_string()
    }

    /// The lanes between ranks that have these records, in the order of ranks. They connect this rank with those on its host:
    /// a call that concerns another rank is [`Error::Invalid`].
    ///
    /// # Errors
    /// [`Error::Malformed`] for text that is no record, [`Error::Io`] if the system has no descriptors left.
    pub fn connect(self, records: &[String]) -> Result<SharedMemoryLanes> {
        let Self { group, config, own } = self;
        let records = rendezvous::read(records)?;
        let hosts = records.iter().map(|record| record.0.map(|place| place.host)).collect();
        let (listener, identity, obstacle) = match own {
            Ok((own, listener)) => {
                let here = |record: &Record| record.0.filter(|place| place.host == own.host);
                let members = records.iter().map(|record| here(record).map(|place| place.member)).collect();
                let identity = Identity { rank: group.rank(), token: own.member.token, members };
                (Some(listener), identity, None)
            }
            Err(obstacle) => (None, Identity::nobody(group.rank()), Some(obstacle)),
        };
        let mesh = Mesh::new(group, SharedMemoryProtocol::new(identity, config), listener)?;
        Ok(SharedMemoryLanes::new(mesh, hosts, obstacle))
    }
}

/// Listens on a socket before anybody hears of it, and makes sure that there is memory to share.
fn listen(config: &RendezvousConfig) -> Result<(Place, OwnedFd)> {
    let host = HostId::of_this_process()?;
    let host = config.part.as_ref().map_or(host, |part| host.part(part));
    let draw = || random::number().map_err(|e| Error::io("draw a random number", e));
    let member = Member { door: draw()?, token: draw()? };
    let listener = socket::listen(member.door).map_err(|e| Error::io("listen on a Unix socket", e))?;
    Segment::create(rustix::param::page_size()).map_err(|e| Error::io("make memory to share", e))?;
    Ok((Place { host, member }, listener))
}

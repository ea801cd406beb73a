//! How the ranks of a job find each other, and who shares memory with whom.
//!
//! They meet with the records of shared memory, which tell each of them the hosts of all. Only if some of them are on
//! different hosts do all exchange the records of TCP too.

use std::sync::Arc;

use comm_core::{Error, Membership, Result, Store};
use comm_rendezvous::{Rendezvous, Watch};
use comm_shm::{SharedMemoryConfig, SharedMemoryEndpoint, SharedMemoryLanes};
use comm_tcp::{TcpEndpoint, TcpLanes};

use crate::paths::{Path, Paths};

/// Who this process is, whom it is to meet, and how it is reached.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// Who this process is and whom it is to meet, and how ranks on other hosts reach it.
    pub tcp: comm_tcp::RendezvousConfig,
    /// How the rings in shared memory are set up.
    pub shm: SharedMemoryConfig,
    /// Names a part of this host: ranks that give another name, or none, are reached through TCP, as if they were on
    /// another host. For containers that are not to share memory, or to try several hosts on one machine.
    pub part: Option<String>,
}

impl RendezvousConfig {
    /// One rank of a world on one machine, with the default timeout of five minutes.
    #[must_use]
    pub fn new(membership: Membership) -> Self {
        Self::from(comm_tcp::RendezvousConfig::new(membership))
    }

    fn memory(&self) -> comm_shm::RendezvousConfig {
        let mut memory =
            comm_shm::RendezvousConfig::new(Membership { rank: self.tcp.rank, size: self.tcp.world_size });
        memory.part.clone_from(&self.part);
        memory.shm = self.shm.clone();
        memory
    }

    /// What of this the ranks of every transport say.
    fn meeting(&self) -> comm_rendezvous::RendezvousConfig {
        let tcp = &self.tcp;
        let mut meeting =
            comm_rendezvous::RendezvousConfig::new(Membership { rank: tcp.rank, size: tcp.world_size });
        (meeting.job, meeting.round, meeting.timeout) = (tcp.job, tcp.round, tcp.timeout);
        meeting.store_rank = tcp.store_rank;
        meeting.settings.clone_from(&tcp.settings);
        meeting.settings.add("transport", "auto");
        meeting.settings.add("secret", if tcp.secret.is_some() { "given" } else { "none" });
        meeting
    }
}

/// What is said of TCP, and defaults for the rest.
impl From<comm_tcp::RendezvousConfig> for RendezvousConfig {
    fn from(tcp: comm_tcp::RendezvousConfig) -> Self {
        Self { tcp, shm: SharedMemoryConfig::default(), part: None }
    }
}

/// What ranks that have met know.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) memory: SharedMemoryLanes,
    /// `None` if all ranks share memory.
    pub(crate) tcp: Option<TcpLanes>,
    pub(crate) paths: Paths,
    /// Tells of ranks that fail while lanes are opened, until all are.
    pub(crate) watch: Option<Arc<Watch>>,
}

/// What a rank of a world of one knows.
pub(crate) fn alone(config: &RendezvousConfig) -> Result<Met> {
    // A world of one asks no store.
    let memory = SharedMemoryLanes::alone_with(&config.shm)?;
    Ok(Met { memory, tcp: None, paths: Paths::new(0, 1, &[]), watch: None })
}

/// Meets the others.
pub(crate) fn meet<'s>(store: &'s dyn Store, config: &RendezvousConfig) -> Result<(Rendezvous<'s>, Met)> {
    let rank = config.tcp.rank;
    let memory = SharedMemoryEndpoint::open(&config.memory());
    let record = memory.as_ref().map(SharedMemoryEndpoint::record).map_err(Clone::clone);
    let (rendezvous, records) = Rendezvous::join(store, config.meeting(), record)?;
    let failed = |error| rendezvous.fail(error);
    let memory = memory.and_then(|memory| memory.connect(&records)).map_err(failed)?;
    let memory = memory.watching(rendezvous.watch());
    let paths = Paths::new(rank, config.tcp.world_size, memory.hosts());
    if let Some(obstacle) = memory.obstacle() {
        tell(rank, obstacle);
    }
    let tcp = if paths.any(Path::Tcp) {
        let endpoint = TcpEndpoint::bind(&config.tcp);
        let record = endpoint.as_ref().map(TcpEndpoint::record).map_err(Clone::clone);
        let records = rendezvous.all_gather(record)?;
        let tcp = endpoint.and_then(|endpoint| endpoint.connect(&records)).map_err(failed)?;
        Some(tcp.watching(rendezvous.watch()))
    } else {
        None
    };
    tracing::info!(rank, hosts = paths.hosts(), %paths, "met the other ranks");
    let watch = rendezvous.watch();
    Ok((rendezvous, Met { memory, tcp, paths, watch }))
}

fn tell(rank: usize, obstacle: &Error) {
    tracing::info!(rank, %obstacle, "this rank can share no memory, and is reached through TCP");
}

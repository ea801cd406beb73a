//! How the ranks of a job find each other, and who shares memory with whom.
//!
//! They meet as ranks of shared memory do, which tells each of them the hosts of all. Only if some of them are on
//! different hosts do all meet once more, as ranks of TCP do.

use std::time::Instant;

use comm_core::{Error, Result, Store};
use comm_shm::{SharedMemoryConfig, SharedMemoryLanes};
use comm_tcp::TcpLanes;

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
    pub fn new(rank: usize, world_size: usize) -> Self {
        Self::from(comm_tcp::RendezvousConfig::new(rank, world_size))
    }

    fn memory(&self) -> comm_shm::RendezvousConfig {
        let mut memory = comm_shm::RendezvousConfig::new(self.tcp.rank, self.tcp.world_size);
        memory.job = self.tcp.job;
        memory.round = self.tcp.round;
        memory.timeout = self.tcp.timeout;
        memory.part.clone_from(&self.part);
        memory.shm = self.shm.clone();
        memory
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
}

/// Meets the others.
pub(crate) fn meet(store: &dyn Store, config: &RendezvousConfig) -> Result<Met> {
    let (began, rank) = (Instant::now(), config.tcp.rank);
    let memory = SharedMemoryLanes::rendezvous_of_neighbours(store, &config.memory())?;
    let paths = Paths::new(rank, config.tcp.world_size, memory.hosts());
    if let Some(obstacle) = memory.obstacle() {
        tell(rank, obstacle);
    }
    let tcp = if paths.any(Path::Tcp) {
        let mut tcp = config.tcp.clone();
        tcp.timeout = tcp.timeout.saturating_sub(began.elapsed());
        Some(TcpLanes::rendezvous(store, &tcp)?)
    } else {
        None
    };
    tracing::info!(rank, hosts = paths.hosts(), %paths, "met the other ranks");
    Ok(Met { memory, tcp, paths })
}

fn tell(rank: usize, obstacle: &Error) {
    tracing::info!(rank, %obstacle, "this rank can share no memory, and is reached through TCP");
}

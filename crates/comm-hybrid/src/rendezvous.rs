//! The rendezvous of the ranks of a job, which also determines which ranks share memory.
//!
//! Ranks exchange records for shared memory, which contain the host of every rank, and records for
//! TCP. The latter are used only if ranks are on different hosts; otherwise the TCP listener is
//! closed.

use std::sync::Arc;

use comm_core::{Error, Membership, Result, Store};
use comm_rendezvous::{Endpoint, Rendezvous, Watch};
use comm_shm::{SharedMemoryConfig, SharedMemoryEndpoint, SharedMemoryFabric};
use comm_tcp::{TcpEndpoint, TcpFabric};

use crate::paths::{Path, Paths};

/// The identity of this process in the rendezvous, and its addresses.
///
/// The smaller one of [`TcpConfig::full_mesh_max`](comm_tcp::TcpConfig::full_mesh_max) and
/// [`SharedMemoryConfig::full_mesh_max`] applies to both transports, because all ranks of a channel
/// must know whether some are connected on demand.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// The identity of this process, and the addresses at which ranks on other hosts reach it.
    pub tcp: comm_tcp::RendezvousConfig,
    /// The configuration of the rings in shared memory.
    pub shm: SharedMemoryConfig,
    /// A name for this host or a part of it. Ranks with another name or none are reached over TCP,
    /// as if they were on another host. This is for containers that must not share memory, or to
    /// emulate several hosts on one machine.
    pub host_id: Option<String>,
}

impl RendezvousConfig {
    /// Returns the configuration of one rank on one machine, with the default timeout of five
    /// minutes.
    #[must_use]
    pub fn new(membership: Membership) -> Self {
        Self::from(comm_tcp::RendezvousConfig::new(membership))
    }

    /// Returns the configuration in which both transports connect the same channels on demand.
    fn with_one_full_mesh_max(&self) -> Self {
        let mut config = self.clone();
        let full_mesh_max = config.tcp.tcp.full_mesh_max.min(config.shm.full_mesh_max);
        (config.tcp.tcp.full_mesh_max, config.shm.full_mesh_max) = (full_mesh_max, full_mesh_max);
        config
    }

    fn memory(&self) -> comm_shm::RendezvousConfig {
        let mut memory = comm_shm::RendezvousConfig::new(self.tcp.member.membership());
        memory.host_id.clone_from(&self.host_id);
        memory.shm = self.shm.clone();
        memory
    }
}

/// Uses the TCP configuration, and defaults for the rest.
impl From<comm_tcp::RendezvousConfig> for RendezvousConfig {
    fn from(tcp: comm_tcp::RendezvousConfig) -> Self {
        Self { tcp, shm: SharedMemoryConfig::default(), host_id: None }
    }
}

/// The result of a rendezvous.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) memory: SharedMemoryFabric,
    /// `None` if all ranks share memory.
    pub(crate) tcp: Option<TcpFabric>,
    pub(crate) paths: Paths,
    /// Reports ranks that fail while channels are being opened.
    pub(crate) watch: Option<Arc<Watch>>,
}

/// Returns the result for the only rank of a world of one.
pub(crate) fn alone(config: &RendezvousConfig) -> Result<Connected> {
    // A world of one does not use the store.
    let memory = SharedMemoryFabric::alone_with(&config.shm)?;
    Ok(Connected { memory, tcp: None, paths: Paths::new(0, 1, &[]), watch: None })
}

/// Runs the rendezvous with the other ranks.
pub(crate) fn connect<'s>(
    store: &'s dyn Store,
    config: &RendezvousConfig,
) -> Result<(Rendezvous<'s>, Connected)> {
    let config = config.with_one_full_mesh_max();
    let memory = SharedMemoryEndpoint::open(&config.memory());
    let membership = config.tcp.member.membership();
    let endpoint =
        memory.map(|memory| HybridEndpoint { membership, memory, tcp: TcpEndpoint::bind(&config.tcp) });
    comm_rendezvous::connect(store, config.tcp.member_over("auto"), endpoint)
}

/// The records of a rank for both transports; the others use the part that they need.
#[derive(Debug)]
struct HybridEndpoint {
    membership: Membership,
    memory: SharedMemoryEndpoint,
    /// An error matters only if some ranks do not share memory.
    tcp: Result<TcpEndpoint>,
}

/// Separates the records of shared memory and TCP.
const SEPARATOR: char = '\t';
/// Precedes the reason why there is no TCP record.
const UNREACHABLE: char = '-';

impl Endpoint for HybridEndpoint {
    type Fabric = Connected;

    fn record(&self) -> String {
        let words = |error: &Error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let unreachable = |error| format!("{UNREACHABLE}{}", words(error));
        let tcp = self.tcp.as_ref().map_or_else(unreachable, TcpEndpoint::record);
        format!("{}{SEPARATOR}{tcp}", self.memory.record())
    }

    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<Connected> {
        let Self { membership: Membership { rank, size }, memory, tcp } = self;
        let (memories, tcps): (Vec<String>, Vec<String>) = records
            .iter()
            .map(|record| {
                let (memory, tcp) = record.split_once(SEPARATOR).ok_or_else(|| malformed(record))?;
                Ok((memory.to_owned(), tcp.to_owned()))
            })
            .collect::<Result<_>>()?;
        let memory = memory.connect(&memories, watch.clone())?;
        let paths = Paths::new(rank, size, memory.hosts());
        if let Some(obstacle) = memory.obstacle() {
            tracing::info!(rank, %obstacle, "this rank cannot share memory, and is reached over TCP");
        }
        let tcp = if paths.any(Path::Tcp) {
            let tcp = tcp?;
            reachable(&tcps)?;
            Some(tcp.connect(&tcps, watch.clone())?)
        } else {
            None
        };
        tracing::info!(rank, hosts = paths.hosts(), %paths, "completed the rendezvous");
        Ok(Connected { memory, tcp, paths, watch })
    }
}

/// Returns the error of the first rank that others cannot reach over TCP, if there is one.
fn reachable(records: &[String]) -> Result<()> {
    let reasons = records.iter().enumerate().filter_map(|(by, record)| {
        let reason = record.strip_prefix(UNREACHABLE)?.to_owned();
        Some(Error::Aborted { by, reason })
    });
    reasons.map(Err).next().unwrap_or(Ok(()))
}

fn malformed(record: &str) -> Error {
    Error::malformed("the record of a rank in the store", format_args!("{record:?}"))
}

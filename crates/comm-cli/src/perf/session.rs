//! The group of ranks that measures.

use comm::hybrid::{Path, Paths};
use comm::ring::Tuning;
use comm::shm::{SharedMemoryConfig, SharedMemoryFabric};
use comm::tcp::TcpFabric;
use comm::{Comm, Config, Fabric, LinkModel, ObjectCollectives, TransportKind, init_with_paths};

use crate::error::{CliError, Result};
use crate::host::{self, RankInfo};

/// A rank of the group that measures.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) comm: Comm,
    /// The tuning with which the communicator selects algorithms.
    pub(crate) tuning: Tuning,
    pub(crate) rank_infos: Vec<RankInfo>,
    /// The number of ranks on this host, according to the launcher.
    pub(crate) local_ranks: usize,
    /// The requested transport.
    transport: TransportKind,
    /// The transports in use.
    paths: Paths,
}

/// Returns the tuning for a transport on one host, before the ranks have connected.
pub(crate) fn default_tuning(transport: TransportKind, config: &Config) -> Result<Tuning> {
    let links = match transport {
        TransportKind::Tcp => TcpFabric::alone(&config.tcp)?.links(),
        _ => SharedMemoryFabric::alone()?.links(),
    };
    Ok(config.ring.tuning(links))
}

impl Session {
    /// Connects to the other ranks with this configuration.
    pub(crate) fn join(transport: TransportKind, config: &Config) -> Result<Self> {
        let mut config = config.clone();
        config.transport = transport;
        let (comm, paths) = init_with_paths(&config)?;
        let rank_infos = comm
            .all_gather_object(&RankInfo::own())
            .map_err(|source| CliError::RankInfos { source: Box::new(source) })?;
        // The communicator uses the link model of rank 0, which may differ from this rank's
        // configuration.
        let tuning = match comm.links() {
            Some(links) => {
                let mut tuning = config.ring.tuning(links);
                tuning.links = links;
                tuning
            }
            None => default_tuning(transport, &config)?,
        };
        Ok(Self { comm, tuning, rank_infos, local_ranks: config.local_world_size, transport, paths })
    }

    /// Describes the transport, such as `tcp` or `auto (shm)`.
    pub(crate) fn transport(&self) -> String {
        let used = self.paths.to_string();
        match self.transport {
            TransportKind::Tcp => "tcp".into(),
            TransportKind::SharedMemory => "shm".into(),
            _ if used.is_empty() => "auto".into(),
            _ => format!("auto ({used})"),
        }
    }

    /// Describes the settings of the transports in use.
    pub(crate) fn detail(&self) -> String {
        let rings = || format!("rings of {} KiB", SharedMemoryConfig::default().ring_bytes >> 10);
        let sockets = || {
            let congestion = host::congestion_control();
            format!(
                "the system's congestion control is {congestion}; connections within a host use cubic or reno if allowed"
            )
        };
        let used = |path, detail: &dyn Fn() -> String| self.paths.any(path).then(detail);
        let details = [used(Path::SharedMemory, &rings), used(Path::Tcp, &sockets)];
        details.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn ranks(&self) -> usize {
        self.comm.size()
    }

    pub(crate) fn prints(&self) -> bool {
        self.comm.rank() == 0
    }

    /// Returns the hosts, in the order of their first ranks.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        let mut hosts = Vec::new();
        for info in &self.rank_infos {
            if !hosts.contains(&&*info.host) {
                hosts.push(&*info.host);
            }
        }
        hosts
    }

    /// Returns the number of consecutive ranks of each host, or 1 if the numbers differ.
    pub(crate) fn ranks_per_host(&self) -> usize {
        let hosts: Vec<&str> = self.rank_infos.iter().map(|info| &*info.host).collect();
        LinkModel::regular_hosts(&hosts).unwrap_or(1)
    }
}

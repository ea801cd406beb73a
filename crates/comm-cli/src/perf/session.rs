//! The group of ranks that measures.

use comm::hybrid::{Path, Paths};
use comm::ring::Tuning;
use comm::shm::{SharedMemoryConfig, SharedMemoryFabric};
use comm::tcp::TcpFabric;
use comm::{Comm, Config, Fabric, LinkModel, TransportKind, init_with_paths};

use super::args::Transport;
use super::error::Result;
use super::host::{self, Seat};

/// How much of what a rank says of itself is passed on, in bytes.
const SEAT_MAX: usize = 256;

/// A rank among others, and what it knows of them.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) comm: Comm,
    /// By which the communicator chooses algorithms.
    pub(crate) tuning: Tuning,
    /// Where each rank runs.
    pub(crate) seats: Vec<Seat>,
    /// The ranks of this host, as the launcher says.
    pub(crate) local_ranks: usize,
    /// What was asked for.
    transport: Transport,
    /// What came of it.
    paths: Paths,
}

impl Transport {
    /// What a configuration means.
    pub(crate) const fn of(kind: TransportKind) -> Self {
        match kind {
            TransportKind::Tcp => Self::Tcp,
            TransportKind::SharedMemory => Self::Shm,
            _ => Self::Auto,
        }
    }

    /// What the ranks are told.
    const fn kind(self) -> TransportKind {
        match self {
            Self::Auto => TransportKind::Auto,
            Self::Tcp => TransportKind::Tcp,
            Self::Shm => TransportKind::SharedMemory,
        }
    }

    /// What it says that messages cost on one host.
    pub(crate) fn links(self, config: &Config) -> Result<LinkModel> {
        match self {
            Self::Tcp => Ok(TcpFabric::alone(&config.tcp)?.links()),
            Self::Auto | Self::Shm => Ok(SharedMemoryFabric::alone()?.links()),
        }
    }

    /// What algorithms are chosen by under this configuration, before ranks have met.
    pub(crate) fn tuning(self, config: &Config) -> Result<Tuning> {
        Ok(config.ring.tuning(self.links(config)?))
    }
}

impl Session {
    /// Meets the other ranks as the environment says.
    pub(crate) fn join(transport: Transport, config: &Config) -> Result<Self> {
        let mut config = config.clone();
        config.transport = transport.kind();
        let (comm, paths) = init_with_paths(&config)?;
        let seats = seats(&comm)?;
        // Rank 0's links may be others than what this rank was told.
        let tuning = match comm.links() {
            Some(links) => {
                let mut tuning = config.ring.tuning(links);
                tuning.links = links;
                tuning
            }
            None => transport.tuning(&config)?,
        };
        Ok(Self { comm, tuning, seats, local_ranks: config.local_world_size, transport, paths })
    }

    /// How ranks reach each other, as in `tcp` or `auto (shm)`.
    pub(crate) fn transport(&self) -> String {
        let used = self.paths.to_string();
        match self.transport {
            Transport::Auto if used.is_empty() => "auto".into(),
            Transport::Auto => format!("auto ({used})"),
            Transport::Tcp => "tcp".into(),
            Transport::Shm => "shm".into(),
        }
    }

    /// What else there is to know of that.
    pub(crate) fn detail(&self) -> String {
        let rings = || format!("rings of {} KiB", SharedMemoryConfig::default().ring_bytes >> 10);
        let sockets = || {
            let congestion = host::congestion_control();
            format!("the system's congestion control is {congestion}; on one host cubic or reno if allowed")
        };
        let used = |path, detail: &dyn Fn() -> String| self.paths.any(path).then(detail);
        let details = [used(Path::SharedMemory, &rings), used(Path::Tcp, &sockets)];
        details.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn ranks(&self) -> usize {
        self.comm.size()
    }

    /// Whether this rank is the one that prints.
    pub(crate) fn speaks(&self) -> bool {
        self.comm.rank() == 0
    }

    /// The hosts, in the order of their first ranks.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        let mut hosts = Vec::new();
        for seat in &self.seats {
            if !hosts.contains(&&*seat.host) {
                hosts.push(&*seat.host);
            }
        }
        hosts
    }

    /// How many consecutive ranks each host holds; 1 if they hold unlike numbers.
    pub(crate) fn ranks_per_host(&self) -> usize {
        let hosts: Vec<&str> = self.seats.iter().map(|seat| &*seat.host).collect();
        LinkModel::regular_hosts(&hosts).unwrap_or(1)
    }
}

/// Gathers what all ranks say of themselves.
fn seats(comm: &Comm) -> Result<Vec<Seat>> {
    let Seat { host, pid, cores } = Seat::own();
    let text = format!("{pid}\n{cores}\n{host}");
    let mut own = [0; SEAT_MAX];
    for (to, from) in own.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    let mut all = vec![0; SEAT_MAX * comm.size()];
    comm.all_gather(&own, &mut all)?;
    Ok(all.chunks(SEAT_MAX).map(seat).collect())
}

fn seat(bytes: &[u8]) -> Seat {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.trim_end_matches('\0').lines();
    let pid = lines.next().and_then(|pid| pid.parse().ok()).unwrap_or_default();
    let [cores, host] = [lines.next(), lines.next()].map(|line| line.unwrap_or("unknown").to_owned());
    Seat { host, pid, cores }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_says_is_understood_even_if_it_is_cut() {
        let mut said = b"123\n0-3\nnode7".to_vec();
        said.resize(SEAT_MAX, 0);
        assert_eq!(seat(&said), Seat { host: "node7".into(), pid: 123, cores: "0-3".into() });
        assert_eq!(seat(b"123\n0").host, "unknown");
    }
}

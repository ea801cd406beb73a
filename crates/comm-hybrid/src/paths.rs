//! The transport by which each rank is reached.

use std::collections::HashMap;

use comm_core::{LinkModel, Membership};
use comm_shm::HostId;

/// The transport to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Shared memory.
    SharedMemory,
    /// A TCP connection.
    Tcp,
}

impl Path {
    /// Returns a short name: `shm` or `tcp`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The hosts of a world. Ranks on one host share memory. Equal on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    rank: usize,
    /// The host of each rank, represented by the host's lowest rank. A rank that cannot share
    /// memory counts as its own host.
    hosts: Vec<usize>,
}

impl Paths {
    /// Returns the paths from this rank to the others, given the host of each.
    pub(crate) fn new(rank: usize, world_size: usize, hosts: &[Option<HostId>]) -> Self {
        let mut first = HashMap::new();
        let host = |at: usize| {
            let known = hosts.get(at).copied().flatten();
            known.map_or(at, |host| *first.entry(host).or_insert(at))
        };
        Self { rank, hosts: (0..world_size).map(host).collect() }
    }

    /// Returns the paths of a world in which all ranks use the same transport, as seen by one of
    /// them.
    #[must_use]
    pub fn all(Membership { rank, size }: Membership, path: Path) -> Self {
        let host = |rank| if path == Path::Tcp { rank } else { 0 };
        Self { rank, hosts: (0..size).map(host).collect() }
    }

    /// Returns the transport between this rank and another; `None` for this rank itself and for a
    /// rank out of range.
    #[must_use]
    pub fn to(&self, rank: usize) -> Option<Path> {
        let (own, other) = (self.hosts.get(self.rank)?, self.hosts.get(rank)?);
        let path = if own == other { Path::SharedMemory } else { Path::Tcp };
        (rank != self.rank).then_some(path)
    }

    /// Returns whether any two ranks of the world use this transport.
    #[must_use]
    pub fn any(&self, path: Path) -> bool {
        let mut hosts = self.hosts.iter().enumerate();
        match path {
            Path::SharedMemory => hosts.any(|(rank, host)| rank != *host),
            Path::Tcp => hosts.any(|(_, host)| *host != 0),
        }
    }

    /// Returns the number of hosts. A rank that cannot share memory counts as one.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts.iter().enumerate().filter(|(rank, host)| rank == *host).count()
    }

    /// Returns the number of consecutive ranks per host if it is equal on all hosts, as for
    /// [`LinkModel::regular_hosts`].
    pub(crate) fn ranks_per_host(&self) -> Option<usize> {
        LinkModel::regular_hosts(&self.hosts)
    }
}

/// Writes the transports in use anywhere in the world, such as `shm` or `shm+tcp`; nothing in a
/// world of one.
impl std::fmt::Display for Paths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = [Path::SharedMemory, Path::Tcp].into_iter().filter(|path| self.any(*path));
        f.pad(&used.map(Path::name).collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the paths of a world whose hosts are letters; a dash is a rank that cannot share
    /// memory.
    fn paths(rank: usize, hosts: &str) -> Paths {
        let here: HostId = "0000000000000000000000000000000b.1.2.3".parse().unwrap();
        let host = |letter: char| (letter != '-').then(|| here.with_name(&letter.to_string()));
        Paths::new(rank, hosts.len(), &hosts.chars().map(host).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_of_one_host_share_memory_and_no_others() {
        let paths = paths(2, "abab--");
        let ways: Vec<_> = (0..7).map(|rank| paths.to(rank).map(Path::name)).collect();
        assert_eq!(ways, [Some("shm"), Some("tcp"), None, Some("tcp"), Some("tcp"), Some("tcp"), None]);
        assert_eq!(paths.hosts(), 4);
    }

    #[test]
    fn ranks_that_cannot_share_memory_are_nobodys_neighbours() {
        let paths = paths(0, "--");
        assert_eq!(paths.to(1), Some(Path::Tcp));
        assert_eq!((paths.hosts(), paths.ranks_per_host()), (2, Some(1)));
    }

    #[test]
    fn a_world_may_know_one_way_only() {
        for (path, like) in [(Path::Tcp, "abc"), (Path::SharedMemory, "aaa")] {
            assert_eq!(Paths::all(Membership { rank: 1, size: 3 }, path), paths(1, like));
        }
    }

    #[test]
    fn what_is_in_use_is_shown_alike_on_every_rank() {
        for (hosts, shown, per_host) in [
            ("a", "", Some(1)),
            ("aa", "shm", Some(2)),
            ("ab", "tcp", Some(1)),
            ("-", "", Some(1)),
            ("--", "tcp", Some(1)),
            ("aab", "shm+tcp", Some(2)),
            ("abb", "shm+tcp", None),
            ("baa-", "shm+tcp", None),
            ("aabbcc", "shm+tcp", Some(2)),
        ] {
            for rank in 0..hosts.len() {
                let paths = paths(rank, hosts);
                assert_eq!(
                    (paths.to_string().as_str(), paths.ranks_per_host()),
                    (shown, per_host),
                    "{hosts}"
                );
            }
        }
    }
}

//! Who is reached in which way.

use std::collections::HashMap;

use comm_core::{LinkModel, Membership};
use comm_shm::HostId;

/// The way to another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Through memory that both ranks share.
    SharedMemory,
    /// Through a TCP connection.
    Tcp,
}

impl Path {
    /// A short name: `shm` or `tcp`.
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

/// Which ranks of a world share memory. Every rank knows the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    rank: usize,
    /// The host of each rank, as the first rank that is there. A rank that can share no memory is its own host.
    hosts: Vec<usize>,
}

impl Paths {
    /// The paths of this rank, and of the others, whose hosts these are.
    pub(crate) fn new(rank: usize, world_size: usize, hosts: &[Option<HostId>]) -> Self {
        let mut first = HashMap::new();
        let host = |at: usize| {
            let known = hosts.get(at).copied().flatten();
            known.map_or(at, |host| *first.entry(host).or_insert(at))
        };
        Self { rank, hosts: (0..world_size).map(host).collect() }
    }

    /// Paths of a world in which all ranks reach each other in the same way, seen by one of them.
    #[must_use]
    pub fn all(Membership { rank, size }: Membership, path: Path) -> Self {
        let host = |rank| if path == Path::Tcp { rank } else { 0 };
        Self { rank, hosts: (0..size).map(host).collect() }
    }

    /// The way between this rank and another one; `None` for this rank itself and for a rank that there is not.
    #[must_use]
    pub fn to(&self, rank: usize) -> Option<Path> {
        let (own, other) = (self.hosts.get(self.rank)?, self.hosts.get(rank)?);
        let path = if own == other { Path::SharedMemory } else { Path::Tcp };
        (rank != self.rank).then_some(path)
    }

    /// Whether any two ranks of the world reach each other in this way.
    #[must_use]
    pub fn any(&self, path: Path) -> bool {
        let mut hosts = self.hosts.iter().enumerate();
        match path {
            Path::SharedMemory => hosts.any(|(rank, host)| rank != *host),
            Path::Tcp => hosts.any(|(_, host)| *host != 0),
        }
    }

    /// The number of hosts; ranks that cannot share memory count as one each.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts.iter().enumerate().filter(|(rank, host)| rank == *host).count()
    }

    /// How many consecutive ranks each host holds, if all hold as many, as [`LinkModel::regular_hosts`] says.
    pub(crate) fn ranks_per_host(&self) -> Option<usize> {
        LinkModel::regular_hosts(&self.hosts)
    }
}

/// The ways that are in use somewhere in the world, as in `shm` or `shm+tcp`; nothing in a world of one.
impl std::fmt::Display for Paths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = [Path::SharedMemory, Path::Tcp].into_iter().filter(|path| self.any(*path));
        f.pad(&used.map(Path::name).collect::<Vec<_>>().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths of a world whose hosts are letters; a dash is a rank that can share no memory.
    fn paths(rank: usize, hosts: &str) -> Paths {
        let here: HostId = "0000000000000000000000000000000b.1.2.3".parse().unwrap();
        let host = |letter: char| (letter != '-').then(|| here.part(&letter.to_string()));
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

//! The libraries under test, and the programs that measure them.

mod ferrotorch;
mod gloo;
mod imb;
mod mpi;
mod oneccl;
mod ours;

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use comm_cli::__private::program::chain;

use super::args::Compare;
use super::bounds::{FLAG, LIMIT, TCP_LIMIT};
use super::journal::LibraryVersions;
use super::machine::rotated_bytes;
use super::record::Case;
use crate::error::{Error, Result};
use crate::{commands, places};
pub(super) use gloo::pytorch_version;

/// The prefix of the names of this library.
pub(super) const OURS: &str = "comm";

/// The fastest MPI with default settings in a round.
pub(crate) const BEST_MPI: &str = "best MPI";
pub(crate) const MPIS: [&str; 5] = ["openmpi", "mpich", "impi", "openmpi-debian", "mpich-debian"];

/// A library under test, with its settings.
pub(crate) trait Library: Debug {
    /// The name in records and reports.
    fn name(&self) -> String;

    fn measures(&self, _case: Case) -> bool {
        true
    }

    /// Returns a program that measures a collective, and prints a line per size.
    fn command(&self, args: &MeasurementArgs<'_>) -> Command;
}

/// The arguments of one measurement.
#[derive(Debug)]
pub(crate) struct MeasurementArgs<'a> {
    pub(crate) case: Case,
    /// The sizes in bytes.
    pub(crate) sizes: &'a [usize],
    /// Whether to check results. The programs of peers always check them.
    pub(crate) check: bool,
    pub(crate) compare: &'a Compare,
}

impl MeasurementArgs<'_> {
    /// Returns the size of the copies of a buffer of one rank, if calls use one after the other.
    fn rotated_bytes(&self) -> usize {
        if self.case.rotates { rotated_bytes() / self.case.ranks } else { 0 }
    }

    /// Returns the arguments of the programs of peers: collective, samples, their length, the size
    /// of all copies of a buffer, sizes.
    fn to_strings(&self) -> Vec<String> {
        let Compare { samples, sample_ms, .. } = self.compare;
        let numbers = [*samples as usize, *sample_ms as usize, self.rotated_bytes()];
        let head = [self.case.collective.to_string()].into_iter().chain(numbers.map(|n| n.to_string()));
        head.chain(self.sizes.iter().map(usize::to_string)).collect()
    }
}

/// A peer with its version, or the reason why it is missing and an explanation of its installation.
type Search = Result<(Box<dyn Library>, String), String>;

/// A row of the table of peers.
struct Peer {
    name: &'static str,
    find: fn(&'static str, &Compare) -> Search,
}

/// All peers, in the order of the report.
const PEERS: [Peer; 12] = [
    Peer { name: "openmpi", find: |name, _| mpi::find(name, mpi::open_mpi(), &[], &[]) },
    Peer { name: "openmpi-tuned", find: |name, _| mpi::find(name, mpi::open_mpi(), &[], &mpi::KEEP_MEMORY) },
    Peer { name: "mpich", find: |name, _| mpi::find(name, mpi::mpich(), &[], &[]) },
    Peer { name: "mpich-tuned", find: |name, _| mpi::find(name, mpi::mpich(), &[], &mpi::KEEP_MEMORY) },
    Peer { name: "impi", find: |name, _| mpi::find(name, mpi::intel_mpi(), &[], &[]) },
    Peer { name: "impi-imb", find: |_, _| imb::find(mpi::intel_mpi()) },
    Peer { name: "oneccl", find: |_, _| oneccl::find() },
    Peer { name: "openmpi-debian", find: |name, _| mpi::find(name, mpi::debian_open_mpi(), &[], &[]) },
    Peer { name: "mpich-debian", find: |name, _| mpi::find(name, mpi::debian_mpich(), &[], &[]) },
    Peer { name: "openmpi-tcp", find: |name, _| mpi::find(name, mpi::open_mpi(), &mpi::ONLY_TCP, &[]) },
    Peer { name: "gloo", find: |_, compare| gloo::find(&compare.python) },
    Peer { name: ferrotorch::NAME, find: |_, _| ferrotorch::find() },
];

/// The value of `--peers` for all peers.
const ALL_PEERS: &str = "all";

/// Returns the values of `--peers`.
pub(crate) fn peers() -> Vec<&'static str> {
    [ALL_PEERS].into_iter().chain(PEERS.map(|peer| peer.name)).collect()
}

/// Returns whether a peer was named, or none was named and it does not take long to build.
fn is_wanted(peer: &Peer, named: &[String]) -> bool {
    let is_named = named.iter().any(|name| name == peer.name || name == ALL_PEERS);
    is_named || named.is_empty() && peer.name != ferrotorch::NAME
}

pub(crate) fn is_ours(library: &str) -> bool {
    library == OURS || library.strip_prefix(OURS).is_some_and(|rest| rest.starts_with('-'))
}

/// Returns whether the two libraries use comparable transports. Peers that have only sockets are
/// also compared with shared memory.
pub(crate) fn is_fair(ours: &str, peer: &str) -> bool {
    let over_tcp = ours.contains("tcp");
    match peer {
        "gloo" | "ferrotorch" => true,
        "openmpi-tcp" | TCP_LIMIT => over_tcp,
        _ => !over_tcp,
    }
}

/// Returns the sort key of a library: this library first, then the peers as in their table.
pub(crate) fn position(library: &str) -> (usize, String) {
    let peer = PEERS.iter().position(|peer| peer.name == library);
    let index = match library {
        ours if is_ours(ours) => 0,
        LIMIT | FLAG | TCP_LIMIT => 1,
        BEST_MPI => 2,
        _ => peer.map_or(usize::MAX, |at| at + 3),
    };
    (index, library.to_owned())
}

/// The installed libraries with their versions, and the missing ones with the reasons.
#[derive(Debug)]
pub(crate) struct Libraries {
    pub(crate) installed: Vec<(Box<dyn Library>, String)>,
    pub(crate) missing: Vec<(String, String)>,
}

impl Libraries {
    /// Returns the names and versions for the journal.
    pub(crate) fn versions(&self) -> LibraryVersions {
        let versions = self.installed.iter().map(|(library, version)| (library.name(), version.clone()));
        LibraryVersions { installed: versions.collect(), missing: self.missing.clone() }
    }
}

/// Finds the requested libraries, and prints the result.
pub(crate) fn find(compare: &Compare, out: &mut impl Write) -> Result<Libraries> {
    let mut found = Libraries { installed: ours::all(compare), missing: Vec::new() };
    for peer in PEERS.iter().filter(|peer| is_wanted(peer, &compare.peers)) {
        match (peer.find)(peer.name, compare) {
            Ok((library, version)) => {
                writeln!(out, "{}: {version}", peer.name)?;
                found.installed.push((library, version));
            }
            Err(reason) => {
                writeln!(out, "{}: {reason}", peer.name)?;
                found.missing.push((peer.name.to_owned(), reason));
            }
        }
    }
    if found.installed.iter().all(|(library, _)| is_ours(&library.name())) {
        return Err(Error::Usage("no peer is installed".into()));
    }
    Ok(found)
}

/// Returns the output of a program, if it exists and succeeds.
fn output(command: &mut Command) -> Option<String> {
    commands::output(command).ok()
}

/// Builds a program, and returns its path or the error.
fn build(command: &mut Command, product: &Path) -> Result<PathBuf, String> {
    commands::output(command).map(|_| product.to_owned()).map_err(|error| chain(&error))
}

/// The folder of the programs that measure peers.
pub(super) fn sources() -> PathBuf {
    places::root().join("xtask/peers")
}

fn built_peers() -> PathBuf {
    places::target().join("peers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_library_comes_first_and_unknown_names_last() {
        let mut names =
            ["other", "gloo", "comm-tcp", "openmpi", "best MPI", "comm-shm", "communist", "mpich-tuned"];
        names.sort_by_key(|name| position(name));
        assert_eq!(
            names,
            ["comm-shm", "comm-tcp", "best MPI", "openmpi", "mpich-tuned", "gloo", "communist", "other"]
        );
    }

    #[test]
    fn sockets_are_not_compared_with_shared_memory() {
        assert!(is_fair("comm-tcp", "openmpi-tcp") && !is_fair("comm-shm", "openmpi-tcp"));
        assert!(is_fair("comm-shm", "mpich-tuned") && !is_fair("comm-tcp", BEST_MPI));
        assert!(is_fair("comm-shm", "gloo") && is_fair("comm-tcp", "gloo"));
        assert!(is_fair("comm-shm-alloc", "openmpi"));
        assert!(is_fair("comm-shm", "oneccl") && !is_fair("comm-tcp", "oneccl"));
    }

    #[test]
    fn names_of_peers_are_unique_and_not_ours() {
        let mut names = peers();
        assert!(names.iter().all(|name| !is_ours(name)) && MPIS.iter().all(|name| names.contains(name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 1 + PEERS.len());
    }

    #[test]
    fn peers_with_long_builds_must_be_named() {
        let wanted = |named: &[&str]| {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            PEERS.iter().filter(|peer| is_wanted(peer, &named)).map(|peer| peer.name).collect::<Vec<_>>()
        };
        assert!(wanted(&[]).contains(&"gloo") && !wanted(&[]).contains(&"ferrotorch"));
        assert_eq!(wanted(&["ferrotorch", "mpich"]), ["mpich", "ferrotorch"]);
        assert_eq!(wanted(&["all"]).len(), PEERS.len());
    }
}

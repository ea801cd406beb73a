//! Who is measured, whether it is here, and how it is started.

mod ferrotorch;
mod gloo;
mod mpi;
mod ours;

use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::args::Compare;
use super::build::Places;
use super::collective::Collective;
use super::error::{CompareError, Result};
use super::record::Case;

/// The start of its name says that a subject is this library.
const OURS: &str = "comm";

/// Whichever of the two as they are shipped was faster in a round.
pub(crate) const BETTER_MPI: &str = "better MPI";
/// Those two.
pub(crate) const MPIS: [&str; 2] = ["openmpi", "mpich"];

/// Someone who can be measured.
pub(crate) trait Subject: Debug {
    /// Under which its measurements are kept.
    fn name(&self) -> String;

    /// Whether it has this collective.
    fn measures(&self, _collective: Collective) -> bool {
        true
    }

    /// The program that measures sizes of a collective among ranks, and prints a line for each.
    fn command(&self, start: &Start<'_>) -> Command;
}

/// What a program measures.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) case: Case,
    /// In bytes, rounded.
    pub(crate) sizes: &'a [usize],
    /// Whether results are compared with what they must be. Peers do so always, as they do it
    /// quickly.
    pub(crate) check: bool,
    pub(crate) compare: &'a Compare,
}

impl Start<'_> {
    /// What all peers' programs take: collective, samples, their length, sizes.
    fn words(&self) -> Vec<String> {
        let Compare { samples, sample_ms, .. } = self.compare;
        let head = [self.case.collective.to_string(), samples.to_string(), sample_ms.to_string()];
        head.into_iter().chain(self.sizes.iter().map(usize::to_string)).collect()
    }
}

/// A peer with its version, or why it is not here and how to change that.
type Search = Result<(Box<dyn Subject>, String), String>;

/// A row of the table of peers.
struct Peer {
    name: &'static str,
    find: fn(&'static str, &Compare, &Places) -> Search,
}

/// Who this library is compared with, in the order in which they stand on the page.
const PEERS: [Peer; 7] = [
    Peer { name: "openmpi", find: |name, _, places| mpi::open_mpi(name, &[], &[], places) },
    Peer {
        name: "openmpi-tuned",
        find: |name, _, places| mpi::open_mpi(name, &[], &mpi::KEEP_MEMORY, places),
    },
    Peer { name: "mpich", find: |name, _, places| mpi::mpich(name, &[], places) },
    Peer { name: "mpich-tuned", find: |name, _, places| mpi::mpich(name, &mpi::KEEP_MEMORY, places) },
    Peer { name: "openmpi-tcp", find: |name, _, places| mpi::open_mpi(name, &mpi::ONLY_TCP, &[], places) },
    Peer { name: "gloo", find: |_, compare, places| gloo::find(&compare.python, places) },
    Peer { name: ferrotorch::NAME, find: |_, _, places| ferrotorch::find(places) },
];

/// Instead of the names of all peers.
const EVERYBODY: &str = "all";

/// What peers can be asked for.
pub(crate) fn peers() -> Vec<&'static str> {
    [EVERYBODY].into_iter().chain(PEERS.map(|peer| peer.name)).collect()
}

/// Whether somebody asked for a peer, or nobody was asked for and it is here or not within seconds.
fn is_wanted(peer: &Peer, asked: &[String]) -> bool {
    let is_named = asked.iter().any(|name| name == peer.name || name == EVERYBODY);
    is_named || asked.is_empty() && peer.name != ferrotorch::NAME
}

/// Whether this is a name of this library.
pub(crate) fn is_ours(subject: &str) -> bool {
    subject == OURS || subject.strip_prefix(OURS).is_some_and(|rest| rest.starts_with('-'))
}

/// Whether it says something to compare these two: sockets are no rival of shared memory, but who
/// has nothing else is.
pub(crate) fn is_fair(ours: &str, peer: &str) -> bool {
    let over_tcp = ours.contains("tcp");
    match peer {
        "gloo" | "ferrotorch" => true,
        "openmpi-tcp" => over_tcp,
        _ => !over_tcp,
    }
}

/// Where a subject stands among others: this library first, then the peers as in their table.
pub(crate) fn position(subject: &str) -> (usize, String) {
    let peer = PEERS.iter().position(|peer| peer.name == subject);
    let place = match subject {
        ours if is_ours(ours) => 0,
        BETTER_MPI => 1,
        _ => peer.map_or(usize::MAX, |at| at + 2),
    };
    (place, subject.to_owned())
}

/// Who was looked for.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) here: Vec<(Box<dyn Subject>, String)>,
    pub(crate) missing: Vec<(String, String)>,
}

/// Looks for everybody who was asked for, and says who is there.
pub(crate) fn find(compare: &Compare, places: &Places, out: &mut impl Write) -> Result<Found> {
    let mut found = Found { here: ours::all(compare, places), missing: Vec::new() };
    for peer in PEERS.iter().filter(|peer| is_wanted(peer, &compare.peers)) {
        match (peer.find)(peer.name, compare, places) {
            Ok((subject, version)) => {
                writeln!(out, "{}: {version}", peer.name)?;
                found.here.push((subject, version));
            }
            Err(reason) => {
                writeln!(out, "{}: {reason}", peer.name)?;
                found.missing.push((peer.name.to_owned(), reason));
            }
        }
    }
    if found.here.iter().all(|(subject, _)| is_ours(&subject.name())) {
        return Err(CompareError::Usage("no peer is installed that could be compared with".into()));
    }
    Ok(found)
}

/// What a program prints, if it is there and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds a program, and keeps quiet about it unless that fails.
fn build(command: &mut Command, product: &Path) -> Result<PathBuf, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(product.to_owned()),
        Ok(output) => Err(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_library_stands_first_and_strangers_last() {
        let mut names =
            ["other", "gloo", "comm-tcp", "openmpi", "better MPI", "comm-shm", "communist", "mpich-tuned"];
        names.sort_by_key(|name| position(name));
        assert_eq!(
            names,
            ["comm-shm", "comm-tcp", "better MPI", "openmpi", "mpich-tuned", "gloo", "communist", "other"]
        );
    }

    #[test]
    fn sockets_are_compared_with_sockets() {
        assert!(is_fair("comm-tcp", "openmpi-tcp") && !is_fair("comm-shm", "openmpi-tcp"));
        assert!(is_fair("comm-shm", "mpich-tuned") && !is_fair("comm-tcp", BETTER_MPI));
        assert!(is_fair("comm-shm", "gloo") && is_fair("comm-tcp", "gloo"));
        assert!(is_fair("comm-shm-alloc", "openmpi"));
    }

    #[test]
    fn names_of_peers_are_unlike_and_not_ours() {
        let mut names = peers();
        assert!(names.iter().all(|name| !is_ours(name)) && MPIS.iter().all(|name| names.contains(name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 1 + PEERS.len());
    }

    #[test]
    fn who_takes_minutes_to_build_must_be_asked_for() {
        let wanted = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            PEERS.iter().filter(|peer| is_wanted(peer, &asked)).map(|peer| peer.name).collect::<Vec<_>>()
        };
        assert!(wanted(&[]).contains(&"gloo") && !wanted(&[]).contains(&"ferrotorch"));
        assert_eq!(wanted(&["ferrotorch", "mpich"]), ["mpich", "ferrotorch"]);
        assert_eq!(wanted(&["all"]).len(), PEERS.len());
    }
}

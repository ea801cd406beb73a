//! Binds ranks to cores or NUMA nodes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The processors to which the launcher binds each rank, as in `mpirun --bind-to`.
///
/// Only processors that the launcher itself may use are divided, so a cpuset of a batch system or
/// `taskset` is respected. Ranks of several launches on one host do not know of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindTo {
    /// Ranks may use all processors of the launcher.
    #[default]
    None,
    /// Each rank gets its own share of the cores, with all hardware threads of each. If there are
    /// more ranks than cores, each gets one of them in turn, so that consecutive ranks can run at
    /// the same time.
    Core,
    /// Each rank gets one NUMA node. Consecutive ranks share a node if there are more of them.
    Numa,
}

/// The error of a binding; no rank was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindingError {
    /// The text is not a binding.
    #[error("expected core, numa or none")]
    Unknown,
    /// The system does not tell its processors.
    #[error("cannot bind ranks: cannot read {}; pass --bind-to none", path.display())]
    Topology {
        /// The file or folder, or the system call.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl FromStr for BindTo {
    type Err = BindingError;

    fn from_str(text: &str) -> Result<Self, BindingError> {
        match text {
            "none" => Ok(Self::None),
            "core" => Ok(Self::Core),
            "numa" => Ok(Self::Numa),
            _ => Err(BindingError::Unknown),
        }
    }
}

/// The processors of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankCpus {
    pub(super) set: CpuSet,
    /// The number of threads with which the rank uses them, if all ranks do the same.
    pub(super) threads: usize,
}

impl BindTo {
    /// Returns the processors of each rank, or none if ranks are not bound.
    pub(super) fn assign(self, ranks: usize) -> Result<Option<Vec<RankCpus>>, BindingError> {
        let shares = match self {
            Self::None => return Ok(None),
            Self::Core => shares(&cores(Path::new("/sys/devices/system/cpu"), &allowed()?)?, ranks),
            Self::Numa => one_each(&numa_nodes(Path::new("/sys/devices/system/node"), &allowed()?)?, ranks),
        };
        let sharing = |share: &Vec<usize>| shares.iter().filter(|other| *other == share).count();
        let cpus = shares.iter().map(|share| {
            let mut set = CpuSet::new();
            share.iter().for_each(|cpu| set.set(*cpu));
            RankCpus { set, threads: (share.len() / sharing(share)).max(1) }
        });
        Ok(Some(cpus.collect()))
    }
}

/// Returns the processors that this process may use.
fn allowed() -> Result<Vec<usize>, BindingError> {
    let failed = |error: rustix::io::Errno| BindingError::Topology {
        path: "the affinity of this process".into(),
        source: error.into(),
    };
    let set = sched_getaffinity(None).map_err(failed)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Divides cores evenly, in order. If there are more ranks, each gets one of them in turn.
fn shares(cores: &[Vec<usize>], ranks: usize) -> Vec<Vec<usize>> {
    if ranks > cores.len() {
        return cores.iter().cycle().take(ranks).cloned().collect();
    }
    let first = |rank: usize| rank * cores.len() / ranks;
    (0..ranks).map(|rank| cores[first(rank)..first(rank + 1)].concat()).collect()
}

/// Gives each rank a node, in order, with as equal numbers of ranks as possible.
fn one_each(nodes: &[Vec<usize>], ranks: usize) -> Vec<Vec<usize>> {
    (0..ranks).map(|rank| nodes[rank * nodes.len() / ranks].clone()).collect()
}

/// Returns the allowed processors of each core.
fn cores(folder: &Path, allowed: &[usize]) -> Result<Vec<Vec<usize>>, BindingError> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    for cpu in allowed {
        if !cores.iter().any(|core| core.contains(cpu)) {
            let list = folder.join(format!("cpu{cpu}/topology/thread_siblings_list"));
            cores.push(common(&read_list(&list)?, allowed));
        }
    }
    Ok(cores)
}

/// Returns the allowed processors of each NUMA node that has any, in order of the nodes.
fn numa_nodes(folder: &Path, allowed: &[usize]) -> Result<Vec<Vec<usize>>, BindingError> {
    let nodes = read_list(&folder.join("online"))?;
    let node = |node| read_list(&folder.join(format!("node{node}/cpulist")));
    let nodes: Vec<Vec<usize>> = nodes.into_iter().map(node).collect::<Result<_, _>>()?;
    let nodes: Vec<_> =
        nodes.iter().map(|node| common(node, allowed)).filter(|node| !node.is_empty()).collect();
    if nodes.is_empty() {
        let source =
            io::Error::new(io::ErrorKind::InvalidData, "no node has a processor that commctl may use");
        return Err(BindingError::Topology { path: folder.to_owned(), source });
    }
    Ok(nodes)
}

fn common(cpus: &[usize], allowed: &[usize]) -> Vec<usize> {
    cpus.iter().copied().filter(|cpu| allowed.contains(cpu)).collect()
}

/// Reads a list of numbers of the kernel, such as `0-3,8`.
fn read_list(path: &Path) -> Result<Vec<usize>, BindingError> {
    let failed = |source| BindingError::Topology { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let wrong = || failed(io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a list")));
    parse_list(text.trim()).ok_or_else(wrong)
}

fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= CpuSet::MAX_CPU {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        assert_eq!(parse_list("0-x"), None);
        assert_eq!(parse_list("0-99999999999"), None);
    }

    /// A host with two NUMA nodes of two cores with two threads each. The first core is 0 and 4.
    fn host() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let write = |name: String, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, format!("{text}\n")).expect("a file");
        };
        for cpu in 0..8 {
            let siblings = format!("{},{}", cpu % 4, cpu % 4 + 4);
            write(format!("cpu{cpu}/topology/thread_siblings_list"), &siblings);
        }
        write("online".to_owned(), "0-2");
        write("node0/cpulist".to_owned(), "0-1,4-5");
        write("node1/cpulist".to_owned(), "2-3,6-7");
        // A node with memory alone.
        write("node2/cpulist".to_owned(), "");
        folder
    }

    #[test]
    fn each_rank_gets_whole_cores_of_those_that_are_allowed() {
        let host = host();
        let all: Vec<usize> = (0..8).collect();
        let bound = |allowed: &[usize], ranks| {
            let cores = cores(host.path(), allowed).expect("files");
            shares(&cores, ranks)
        };
        assert_eq!(bound(&all, 2), [vec![0, 4, 1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(bound(&all, 3), [vec![0, 4], vec![1, 5], vec![2, 6, 3, 7]]);
        assert_eq!(bound(&[1, 3, 7], 2), [vec![1], vec![3, 7]]);
        assert_eq!(bound(&[1, 3, 7], 3), [vec![1], vec![3, 7], vec![1]]);
        assert_eq!(bound(&[1, 3], 5), [vec![1], vec![3], vec![1], vec![3], vec![1]]);
    }

    #[test]
    fn ranks_are_spread_over_the_nodes_that_are_allowed() {
        let host = host();
        let bound =
            |allowed: &[usize], ranks| one_each(&numa_nodes(host.path(), allowed).expect("files"), ranks);
        let (first, second) = (vec![0, 1, 4, 5], vec![2, 3, 6, 7]);
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(bound(&all, 1), std::slice::from_ref(&first));
        assert_eq!(bound(&all, 3), [first.clone(), first, second.clone()]);
        assert_eq!(bound(&[2, 3, 6, 7], 2), [second.clone(), second]);
        let missing = numa_nodes(&host.path().join("nothing"), &all);
        assert!(matches!(missing, Err(BindingError::Topology { .. })), "{missing:?}");
    }
}

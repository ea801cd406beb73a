//! Checks this host before a job, and all hosts of a job as its ranks.

mod facts;
mod folders;
mod gpu;
mod links;
mod problems;
mod report;

use std::path::PathBuf;

use comm::{Comm, Config, ObjectCollectives};
use serde::{Deserialize, Serialize};

use crate::error::{CliError, Result};
use crate::host::first_line;
use facts::Facts;
use links::Link;
use problems::{Problem, Severity};

/// The size of a job.
#[derive(Debug, Clone, Copy)]
struct JobSize {
    ranks: usize,
    /// The number of ranks on this host.
    local_ranks: usize,
}

impl JobSize {
    const fn has_other_hosts(&self) -> bool {
        self.ranks > self.local_ranks
    }
}

/// The size of a job as far as the user has given it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GivenSize {
    pub(super) local_ranks: Option<usize>,
    pub(super) world: Option<usize>,
}

/// A host with a network of its own, as two containers of one machine have. Names need not differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    name: String,
    /// The start of the kernel, and the network.
    id: String,
}

impl Host {
    fn own() -> Self {
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let id = format!("{} {}", first_line("/proc/sys/kernel/random/boot_id"), network.display());
        Self { name: first_line("/proc/sys/kernel/hostname"), id }
    }
}

/// The properties and problems of the hosts of a job, or of this host alone.
#[derive(Debug, Default, Serialize)]
struct Diagnosis {
    problems: Vec<Problem>,
    hosts: Vec<Facts>,
    /// The links between the ranks that were measured.
    links: Vec<Link>,
}

/// Prints the problems of this host for a job of this size; as a rank that a launcher has
/// started, those of all hosts and of the links between ranks. Returns an error if a job would
/// fail.
pub(super) fn run(size: GivenSize, folders: &[PathBuf], json: bool) -> Result<()> {
    let diagnosis = match Config::is_launched() {
        true => match of_job(folders)? {
            Some(diagnosis) => diagnosis,
            // Rank 0 prints.
            None => return Ok(()),
        },
        false => of_host(size, folders),
    };
    report::write(&diagnosis, json)?;
    match diagnosis.problems.iter().filter(|problem| problem.severity == Severity::Error).count() {
        0 => Ok(()),
        errors => Err(CliError::Unfit(errors)),
    }
}

fn of_host(size: GivenSize, folders: &[PathBuf]) -> Diagnosis {
    let facts = Facts::read(folders);
    let local_ranks = size.local_ranks.unwrap_or(facts.cores);
    let job = JobSize { ranks: size.world.unwrap_or(local_ranks).max(local_ranks), local_ranks };
    Diagnosis { problems: problems::of(&facts, &job), hosts: vec![facts], links: Vec::new() }
}

/// Measures as one rank of a job. Returns the diagnosis on rank 0.
fn of_job(folders: &[PathBuf]) -> Result<Option<Diagnosis>> {
    let config = Config::from_env()?;
    let comm = comm::init_with(&config)?;
    let (facts, own_host) = (Facts::read(folders), Host::own());
    let gathered = |source| CliError::RankInfos { source: Box::new(source) };
    let hosts = comm.all_gather_object(&own_host).map_err(gathered)?;
    let job =
        JobSize { ranks: comm.size(), local_ranks: hosts.iter().filter(|host| **host == own_host).count() };
    // The first rank of each host speaks for it.
    let is_first = hosts.iter().position(|host| *host == own_host) == Some(comm.rank());
    let own = is_first.then(|| (problems::of(&facts, &job), facts));
    let all = comm.all_gather_object(&own).map_err(gathered)?;
    let links = links::measure(&comm, &hosts)?;
    comm.finalize()?;
    if config.rank > 0 {
        return Ok(None);
    }
    let mut diagnosis = Diagnosis { problems: links::problems(&links, &hosts), hosts: Vec::new(), links };
    for (problems, facts) in all.into_iter().flatten() {
        diagnosis.problems.extend(problems);
        diagnosis.hosts.push(facts);
    }
    diagnosis.problems.sort_by_key(|problem| problem.severity);
    Ok(Some(diagnosis))
}

/// Returns the links of all ranks, given those that each has measured.
fn gather_links(comm: &Comm, own: &[Link]) -> Result<Vec<Link>> {
    let all = comm.all_gather_object(&own.to_vec());
    Ok(all.map_err(|source| CliError::RankInfos { source: Box::new(source) })?.concat())
}

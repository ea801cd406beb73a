//! Runs random programs of the communicator on faulty networks in virtual time.

mod elastic;
#[cfg(test)]
mod every_moment;
mod program;
mod rendezvous;
mod sockets;
mod summary;
mod workers;

use std::io::Write;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use comm_cli::__private::progress::Progress;
use comm_core::Result as CommResult;
use comm_sim::network::NetworkFabric;
use comm_sim::swarm::{self, Changes, Knobs, PassedRun, SwarmRank, Watchdog};

use crate::error::{Error, Result};
use crate::{commands, places};
use summary::Summary;
use workers::run_seeds;

/// Run random programs on faulty networks in virtual time, and check the properties of every run.
///
/// A seed determines four runs: of a communicator, of a rendezvous through a store, of a group that
/// shrinks and grows, and of such a group over sockets. It determines the number of ranks, the
/// network, the faults, the calls, and the order of threads. If a property does not hold, a smaller
/// run is searched that fails in the same way, and its log is printed.
#[derive(Debug, Args)]
pub(crate) struct Swarm {
    /// Run only this seed, and print its log
    #[arg(long, conflicts_with_all = ["first", "runs", "seconds"])]
    seed: Option<u64>,

    /// The first seed; by default the first 64 bits of the hash of the commit
    #[arg(long, value_name = "SEED")]
    first: Option<u64>,

    /// The number of seeds
    #[arg(long, conflicts_with = "seconds")]
    runs: Option<u64>,

    /// The time after which no run begins
    #[arg(long, default_value_t = 20)]
    seconds: u64,

    /// Run only this program
    #[arg(long, value_enum)]
    program: Option<ProgramName>,

    /// The number of seeds that run at the same time; by default one per processor
    #[arg(long, conflicts_with = "seed")]
    jobs: Option<usize>,
}

/// The name of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProgramName {
    Communicator,
    Rendezvous,
    Elastic,
    Sockets,
}

/// A program that every seed runs, and the limits of its runs.
struct Program {
    name: ProgramName,
    knobs: Knobs,
    run: fn(NetworkFabric, &SwarmRank<'_>) -> CommResult<()>,
}

impl Program {
    fn all() -> [Self; 4] {
        [
            Self {
                name: ProgramName::Communicator,
                knobs: Knobs::default().changes(Changes::AfterFault),
                run: program::run,
            },
            Self { name: ProgramName::Rendezvous, knobs: rendezvous::knobs(), run: rendezvous::run },
            Self { name: ProgramName::Elastic, knobs: elastic::knobs(), run: elastic::run },
            Self { name: ProgramName::Sockets, knobs: sockets::knobs(), run: sockets::run },
        ]
    }

    /// Returns the programs with this name, or all.
    fn named(name: Option<ProgramName>) -> Vec<Self> {
        Self::all().into_iter().filter(|program| name.is_none_or(|name| program.name == name)).collect()
    }

    fn run(&self, seed: u64) -> Result<PassedRun> {
        let passed = swarm::run_seed(seed, &self.knobs, &self.run);
        passed.map_err(|failure| Error::Swarm { seed, failure })
    }
}

/// The real time after which a run is reported as hanging: a thousand times that of a usual run.
const HANGS_AFTER: Duration = Duration::from_secs(60);

impl Swarm {
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        match self.seed {
            Some(seed) => show(seed, self.program, out),
            None => self.run_all(out),
        }
    }

    fn run_all(&self, out: &mut impl Write) -> Result<()> {
        let first = self.first.map_or_else(seed_of_commit, Ok)?;
        let (start, limit) = (Instant::now(), Duration::from_secs(self.seconds));
        let exists = |number| self.runs.map_or_else(|| start.elapsed() < limit, |runs| number < runs);
        let steps = self.runs.unwrap_or(self.seconds);
        let progress = Progress::with_estimate(usize::try_from(steps).unwrap_or(usize::MAX));
        let (mut summary, mut steps_done) = (Summary::default(), 0);
        run_seeds((first, self.jobs()), self.program, &exists, |runs| {
            summary.add(runs);
            let next = self.runs.map_or_else(|| start.elapsed().as_secs(), |_| summary.seeds());
            (steps_done..next.min(steps)).for_each(|_| progress.done(|| ()));
            progress.at(format!("{} runs", summary.runs()));
            steps_done = next;
        })?;
        drop(progress);
        summary.write(out, first, start.elapsed())?;
        Ok(())
    }

    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get)).max(1)
    }
}

/// Runs one seed, and prints its logs.
fn show(seed: u64, name: Option<ProgramName>, out: &mut impl Write) -> Result<()> {
    let watchdog = Watchdog::new(HANGS_AFTER);
    for program in Program::named(name) {
        watchdog.begin(seed);
        // Printed first, because the run may hang.
        write!(out, "{}", swarm::Plan::draw(seed, &program.knobs))?;
        out.flush()?;
        let passed = program.run(seed)?;
        for entry in &passed.log {
            writeln!(out, "{entry}")?;
        }
        writeln!(out, "all properties hold; digest {:016x}", passed.digest)?;
    }
    Ok(())
}

/// Returns the first 64 bits of the hash of the current commit.
fn seed_of_commit() -> Result<u64> {
    let mut git = std::process::Command::new("git");
    let hash = commands::output(git.args(["rev-parse", "HEAD"]).current_dir(places::root()))?;
    let seed = hash.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    seed.ok_or_else(|| Error::Usage(format!("git printed {hash:?} in place of a commit; pass --first")))
}

#[cfg(test)]
mod tests;

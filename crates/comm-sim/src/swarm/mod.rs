//! Runs of a whole program on a faulty network in virtual time, drawn from seeds.
//!
//! Each seed draws a [`Plan`]: the number of ranks, the network, and faults at certain times or
//! operations, such as deaths, stopped ranks, connection resets, partitions and corrupted bytes.
//! Which kinds of faults may happen is drawn as well, so that some runs have only one kind
//! (A. Groce et al., "Swarm Testing", ISSTA 2012). The ranks are threads that run one at a time, so
//! the seed reproduces every operation.
//!
//! In each run, the properties listed in [`Property`] are checked. If one does not hold, a smaller
//! plan is searched that fails in the same way.
//!
//! A program is a function of a fabric and a [`SwarmRank`], in which it makes its calls:
//!
//! ```
//! use comm_core::{Comm, ReduceOp, Result};
//! use comm_ring::{RingCommunicator, RingConfig};
//! use comm_sim::network::NetworkFabric;
//! use comm_sim::swarm::{self, Knobs, SwarmRank};
//!
//! /// Adds up ones, in smaller and smaller groups.
//! fn program(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
//!     let timeout = rank.timeout();
//!     let connect = || RingCommunicator::new(fabric, RingConfig::default(), timeout);
//!     let mut comm = Comm::new(rank.call("connect", timeout, connect)?).with_timeout(timeout);
//!     for _ in 0..rank.steps() {
//!         let mut sum = [1_u64];
//!         match rank.call("all_reduce", timeout, || comm.all_reduce(&mut sum, ReduceOp::Sum)) {
//!             Ok(()) if sum != [comm.size() as u64] => rank.wrong(format!("the sum is {sum:?}")),
//!             Ok(()) => {}
//!             Err(_) => (comm, _) = rank.shrink(&comm)?,
//!         }
//!     }
//!     Ok(())
//! }
//!
//! // In a test:
//! let runs = swarm::check(0..20, &Knobs::default(), &program);
//! assert!(runs.iter().any(|run| run.shrunk > 0));
//! ```

mod check;
mod minimize;
mod plan;
mod rank;
mod watchdog;
pub mod workload;

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use comm_core::{Fabric, Result};

use crate::network::{self, Incident, LogEntry, NetworkFabric, Simulation};
use crate::threads::message;
pub use check::{Property, Violation};
pub use plan::{Changes, FaultKind, Knobs, Moment, Plan, PlannedFault};
use rank::Record;
pub use rank::SwarmRank;
pub use watchdog::Watchdog;

/// The program of every rank. Its result does not matter: errors are checked in
/// [`SwarmRank::call`].
pub type RankProgram<'a> = dyn Fn(NetworkFabric, &SwarmRank<'_>) -> Result<()> + Sync + 'a;

/// A run in which all properties hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassedRun {
    /// The faults that happened, and their times.
    pub incidents: Vec<(Duration, Incident)>,
    /// The number of calls that failed on ranks that live.
    pub failed_calls: usize,
    /// The number of times that a rank went on in a smaller group.
    pub shrunk: usize,
    /// The number of times that a rank entered another group: see [`SwarmRank::enter`].
    pub entered: usize,
    /// The log.
    pub log: Vec<LogEntry>,
    /// A hash of every operation.
    pub digest: u64,
}

/// A run in which a property does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRun {
    /// The plan, which reproduces the run.
    pub plan: Plan,
    /// The property.
    pub violation: Violation,
    /// The log.
    pub log: Vec<LogEntry>,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation)?;
        write!(f, "{}", self.plan)?;
        self.log.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl std::error::Error for FailedRun {}

/// Runs a plan and checks all properties.
///
/// # Errors
/// The run, if a property does not hold.
pub fn run_plan(plan: &Plan, program: &RankProgram<'_>) -> Result<PassedRun, Box<FailedRun>> {
    let mut network = plan.network.clone();
    for fault in &plan.faults {
        if let Moment::After(time) = fault.moment {
            network.incidents.extend(fault.incidents.iter().map(|incident| (time, *incident)));
        }
    }
    let simulation = network::simulate(plan.ranks, plan.seed, &network, |fabric, clock| {
        let rank = SwarmRank::new(fabric.group().rank(), plan, clock);
        // The outcome of every call was recorded.
        let ended = catch_unwind(AssertUnwindSafe(|| drop(program(fabric, &rank))));
        if let Err(panic) = ended {
            rank.violate(Property::NoPanic, message(&panic));
        }
        rank.into_record()
    });
    match check::check(plan, &simulation) {
        Ok(()) => Ok(passed(simulation)),
        Err(violation) => Err(Box::new(FailedRun { plan: plan.clone(), violation, log: simulation.log })),
    }
}

fn passed(simulation: Simulation<Record>) -> PassedRun {
    let Simulation { results, incidents, log, digest, .. } = simulation;
    let living = || results.iter().filter(|record| !record.is_dead);
    let failed = living().flat_map(|record| &record.calls).filter(|call| call.error.is_some());
    let failed_calls = failed.count();
    let shrunk = living().map(|record| record.groups.len() - record.entered.max(1)).sum();
    let entered = living().map(|record| record.entered).sum();
    PassedRun { incidents, failed_calls, shrunk, entered, log, digest }
}

/// Runs the plan of a seed. If a property does not hold, searches a smaller plan that fails in the
/// same way.
///
/// # Errors
/// The smallest run found in which the property does not hold.
pub fn run_seed(seed: u64, knobs: &Knobs, program: &RankProgram<'_>) -> Result<PassedRun, Box<FailedRun>> {
    let first = run_plan(&Plan::draw(seed, knobs), program);
    first.map_err(|failure| Box::new(minimize::minimize(*failure, program)))
}

/// The real time after which a run is reported as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Runs the plans of many seeds in a test.
///
/// # Panics
/// If a property does not hold, with the log of the smallest run found in which it does not.
pub fn check(seeds: Range<u64>, knobs: &Knobs, program: &RankProgram<'_>) -> Vec<PassedRun> {
    let watchdog = Watchdog::new(HANGS_AFTER);
    let run = |seed| {
        watchdog.begin(seed);
        match run_seed(seed, knobs, program) {
            Ok(passed) => passed,
            #[expect(clippy::panic, reason = "documented, for tests")]
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    };
    seeds.map(run).collect()
}

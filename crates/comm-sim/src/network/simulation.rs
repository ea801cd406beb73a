//! Runs of ranks in virtual time, and their log.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use comm_core::{Group, GroupId, Membership};

use super::fabric::{NetworkFabric, VirtualClock};
use super::system::install;
use super::turns::Turns;
use super::{FaultPlan, Incident, SharedWorld};
use crate::random::mix;
use crate::threads::run_jobs;

/// The results and the log of a run in virtual time.
#[derive(Debug)]
#[non_exhaustive]
pub struct Simulation<T> {
    /// The results, in rank order.
    pub results: Vec<T>,
    /// The ranks that still waited after a week of virtual time, because they are deadlocked.
    pub deadlocked: Vec<usize>,
    /// The number of transports that were not dropped, and of sockets that were not closed.
    pub open_transports: usize,
    /// The faults, and their times after the start.
    pub incidents: Vec<(Duration, Incident)>,
    /// The faults, and the entries that ranks added with [`VirtualClock::log`], in order.
    pub log: Vec<LogEntry>,
    /// A hash of every operation on a transport, with its rank and time.
    pub digest: u64,
}

/// An entry of the log of a [`Simulation`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// The time after the start.
    pub at: Duration,
    /// The rank that added it; `None` for a fault.
    pub rank: Option<usize>,
    /// The event.
    pub text: String,
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, rank, text } = self;
        write!(f, "{:>14.6} ms  ", at.as_secs_f64() * 1e3)?;
        match rank {
            Some(rank) => write!(f, "rank {rank} {text}"),
            None => f.write_str(text),
        }
    }
}

/// The log of a run.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<LogEntry>,
    pub(super) happened: Vec<(Duration, Incident)>,
    digest: u64,
}

impl Log {
    pub(super) fn add(&mut self, at: Duration, rank: Option<usize>, text: String) {
        self.entries.push(LogEntry { at, rank, text });
    }

    /// Adds an operation to the digest.
    pub(super) fn mix(&mut self, at: Duration, words: [usize; 4]) {
        let time = [at.as_secs(), u64::from(at.subsec_nanos())];
        let words = words.into_iter().map(|word| word as u64);
        self.digest = time.into_iter().chain(words).fold(self.digest, |digest, word| mix(digest ^ word));
    }
}

/// Runs `rank` for each rank, in virtual time. One rank runs at a time, until it sleeps or until an
/// operation on a transport passes the turn to another; both choices depend on the seed. So each
/// run can be reproduced from its seed and plan.
///
/// The ranks are coroutines of the calling thread, with stacks of 2 MiB. They must wait for each
/// other only in transports and in [`VirtualClock::sleep`], and share the values of variables that
/// are local to a thread. While a rank that has panicked drops its values, no other rank runs.
/// Further threads of a rank take part if they are added to
/// [`Fabric::scheduler`](comm_core::Fabric::scheduler), as those of [`Worker`](comm_core::Worker)
/// are; no other threads may use its transports. After a rank has died, every operation fails on
/// all of its threads.
///
/// # Panics
/// If a rank panics; see [`run_each`](crate::run_each).
pub fn simulate<T: Send>(
    n: usize,
    seed: u64,
    plan: &FaultPlan,
    rank: impl Fn(NetworkFabric, VirtualClock) -> T + Sync,
) -> Simulation<T> {
    simulate_any(n, seed, plan, &rank)
}

/// Like [`simulate`], but the same code for all closures.
fn simulate_any<T: Send>(
    n: usize,
    seed: u64,
    plan: &FaultPlan,
    rank: &(dyn Fn(NetworkFabric, VirtualClock) -> T + Sync),
) -> Simulation<T> {
    install();
    let world = SharedWorld::new(n, seed, plan);
    world.lock().turns = Some(Turns::new(seed));
    let group = |rank| Group::new(GroupId::WORLD, Membership { rank, size: n }).ok();
    let groups: Vec<_> = (0..n).filter_map(group).collect();
    let members: Arc<[usize]> = (0..n).collect();
    // Created here, so that the turns of a rank that cannot be started end too.
    let turns = |group: Group| (group, TurnGuard { rank: group.rank(), world: world.clone() });
    let run_rank = |(group, turns): (Group, TurnGuard)| {
        let clock = VirtualClock::new(group.rank(), world.clone());
        let result = rank(NetworkFabric::new(group, Arc::clone(&members), world.clone()), clock);
        drop(turns);
        result
    };
    let parts = groups.into_iter().map(turns).collect();
    let results = run_jobs(parts, &run_rank, |jobs| world.run_ranks(jobs));
    let mut world = world.lock();
    // The actions that did not run own the world.
    world.ranks.iter_mut().for_each(|rank| rank.operations.actions.clear());
    let deadlocked = world.turns.take().map(|turns| turns.deadlocked).unwrap_or_default();
    let transports: usize = world.ranks.iter().map(|rank| rank.open_transports).sum();
    let open_transports = transports + world.settle_sockets();
    let log = std::mem::take(&mut world.log);
    let Log { entries, happened, digest } = log;
    Simulation { results, deadlocked, open_transports, incidents: happened, log: entries, digest }
}

/// Runs `rank` for each rank, as [`simulate`] does, and returns the results in rank order.
///
/// # Panics
/// If a rank panics. If ranks still wait after a week of virtual time, because they are deadlocked.
pub fn run<T: Send>(
    n: usize,
    seed: u64,
    plan: &FaultPlan,
    rank: impl Fn(NetworkFabric, VirtualClock) -> T + Sync,
) -> Vec<T> {
    let Simulation { results, deadlocked, .. } = simulate(n, seed, plan, rank);
    assert!(deadlocked.is_empty(), "ranks {deadlocked:?} are deadlocked (seed {seed})");
    results
}

/// Ends the turns of a rank when it is dropped, which includes a panic of the rank.
struct TurnGuard {
    rank: usize,
    world: SharedWorld,
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.world.end(self.rank);
    }
}

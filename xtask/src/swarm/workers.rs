//! Runs seeds on several processors at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use comm_sim::swarm::{PassedRun, Watchdog};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{HANGS_AFTER, Program, ProgramName};
use crate::error::Result;

/// The runs of one seed.
type SeedRuns = Vec<PassedRun>;

/// The seeds to run, from `first` on.
struct Seeds<'a> {
    first: u64,
    /// The number of seeds that have begun.
    begun: AtomicU64,
    has_failed: AtomicBool,
    /// The only program to run, if there is one.
    program: Option<ProgramName>,
    /// Whether there is a seed with this number, counted from 0, to be asked when it is to begin.
    exists: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Seeds<'_> {
    fn next(&self) -> Option<u64> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let is_next = !self.has_failed.load(Ordering::Relaxed) && (self.exists)(number);
        is_next.then(|| self.first.wrapping_add(number))
    }

    /// Runs seeds on the calling thread, one after the other.
    fn run(&self, done: &Sender<Result<SeedRuns>>) {
        let (programs, watchdog) = (Program::named(self.program), Watchdog::new(HANGS_AFTER));
        while let Some(seed) = self.next() {
            let run = |program: &Program| {
                watchdog.begin(seed);
                program.run(seed)
            };
            let runs: Result<SeedRuns> = programs.iter().map(run).collect();
            self.has_failed.fetch_or(runs.is_err(), Ordering::Relaxed);
            if done.send(runs).is_err() {
                return;
            }
        }
    }
}

/// Runs seeds from `first` on, in `jobs` threads, as long as `exists` returns true for the number
/// of the next one. Calls `done` with the runs of each seed.
pub(super) fn run_seeds(
    (first, jobs): (u64, usize),
    program: Option<ProgramName>,
    exists: &(dyn Fn(u64) -> bool + Sync),
    mut done: impl FnMut(&SeedRuns),
) -> Result<()> {
    let seeds =
        Seeds { first, begun: AtomicU64::new(0), has_failed: AtomicBool::new(false), program, exists };
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for job in 0..jobs {
            let (seeds, sender) = (&seeds, sender.clone());
            scope.spawn(move || {
                stay_on_processor(job);
                seeds.run(&sender);
            });
        }
        drop(sender);
        outcomes.iter().try_for_each(|runs| runs.map(|runs| done(&runs)))
    })
}

/// Keeps the calling thread, and those that it starts, on one processor: the threads of a run take
/// turns, and a processor goes on with the next one faster than it wakes another processor.
fn stay_on_processor(job: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&at| allowed.is_set(at)).collect();
    let Some(&processor) = processors.get(job % processors.len().max(1)) else { return };
    let mut own = CpuSet::new();
    own.set(processor);
    // The runs are the same on all processors.
    let _ = sched_setaffinity(None, &own);
}

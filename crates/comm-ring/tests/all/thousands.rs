//! Thousands of ranks in one process, in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric, VirtualClock};

/// The number of elements of an all-reduce.
const LENGTH: usize = 5;
/// Longer than any call takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The latency of the network.
const LATENCY: Duration = Duration::from_micros(10);
/// The time for which a rank that has left collects the goodbyes of others.
const COLLECT: Duration = Duration::from_millis(1);

/// The report of a rank.
#[derive(Debug)]
struct Named {
    /// The rank that has died, according to the error.
    rank: usize,
    /// The time since its death.
    after: Duration,
}

/// Returns the number of ranks of a test that is run by hand.
fn ranks(default: usize) -> usize {
    std::env::var("COMM_TEST_RANKS").map_or(default, |ranks| ranks.parse().unwrap())
}

/// Returns the largest amount of memory that this process has used, in MB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1000
}

/// The steps of a test that is run by hand, and the number of ranks that have done each.
struct Progress {
    ranks: usize,
    began: Instant,
    formed: AtomicUsize,
    summed: AtomicUsize,
    named: AtomicUsize,
}

impl Progress {
    fn new(ranks: usize) -> Self {
        let [formed, summed, named] = [const { AtomicUsize::new(0) }; 3];
        Self { ranks, began: Instant::now(), formed, summed, named }
    }

    /// Counts a rank that has done a step, and prints the time when `all` have.
    fn count(&self, done: &AtomicUsize, all: usize, step: &str) {
        if done.fetch_add(1, Ordering::Relaxed) + 1 == all {
            println!(
                "{} ranks {step} after {:.1?}, with {} MB",
                self.ranks,
                self.began.elapsed(),
                peak_memory()
            );
        }
    }
}

/// A small integer, so that the sum over all ranks is exact in `f32`.
const fn element(rank: usize, at: usize) -> f32 {
    (rank * (at + 7) % 1021) as f32
}

/// Computes sums over all ranks, which must be `expected`. Then `victim` dies, and the next call
/// names it.
fn run(
    fabric: NetworkFabric,
    clock: &VirtualClock,
    (victim, expected): (usize, [f32; LENGTH]),
    progress: &Progress,
) -> Option<Named> {
    let mut config = RingConfig::default();
    config.recorded_calls = 64;
    let comm = Comm::new(RingCommunicator::new(fabric, config, TIMEOUT).unwrap());
    let comm = comm.with_timeout(TIMEOUT).with_algorithm("recursive_doubling");
    let (rank, ranks) = (comm.rank(), comm.size());
    progress.count(&progress.formed, ranks, "have formed a group");
    let mut sums: [f32; LENGTH] = std::array::from_fn(|at| element(rank, at));
    comm.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
    assert_eq!(sums.map(f32::to_bits), expected.map(f32::to_bits), "rank {rank}");
    progress.count(&progress.summed, ranks, "have the right sums");
    if rank == victim {
        // All others have made this call, and wait in the next one.
        clock.sleep(Duration::from_millis(50));
        clock.die();
        return None;
    }
    match comm.all_reduce(&mut sums, ReduceOp::Sum).unwrap_err() {
        Error::PeerLost { peer, .. } => {
            progress.count(&progress.named, ranks - 1, "but the dead one have named it");
            let died = clock.incidents()[0].0;
            Some(Named { rank: peer, after: clock.elapsed() - died })
        }
        other => panic!("rank {rank}: {other}"),
    }
}

/// All ranks know of a death after as many messages as the number of ranks has bits, because each
/// passes on the report of a rank that it is connected with.
fn all_name_one_that_dies(ranks: usize) {
    let (progress, plan) = (Progress::new(ranks), FaultPlan::calm().latency(LATENCY).on_demand(true));
    let victim = ranks / 3;
    let expected = std::array::from_fn(|at| (0..ranks).map(|rank| element(rank, at)).sum());
    let run_rank = |fabric, clock| run(fabric, &clock, (victim, expected), &progress);
    let named = network::run(ranks, 1, &plan, run_rank);
    let named: Vec<Named> = named.into_iter().flatten().collect();
    assert_eq!(named.len(), ranks - 1);
    assert!(named.iter().all(|named| named.rank == victim));
    let last = named.iter().map(|named| named.after).max().unwrap();
    let (took, memory) = (progress.began.elapsed(), peak_memory());
    println!("{ranks} ranks: all have named rank {victim} after {last:?}; {took:.1?} and {memory} MB in all");
    let steps = ranks.next_power_of_two().ilog2() + 1;
    assert!(last <= LATENCY * 2 * steps, "{last:?}");
}

/// All ranks leave together, and each of them waits until all others have left.
fn all_leave(ranks: usize) {
    let (progress, plan) = (Progress::new(ranks), FaultPlan::calm().latency(LATENCY).on_demand(true));
    let left = network::run(ranks, 1, &plan, |fabric, clock| {
        let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT).unwrap());
        let began = clock.elapsed();
        comm.with_timeout(TIMEOUT).finalize().unwrap();
        clock.elapsed() - began
    });
    let (last, took) = (left.iter().max().unwrap(), progress.began.elapsed());
    println!("{ranks} ranks: all have left after {last:?}; {took:.1?} in all");
    let steps = ranks.next_power_of_two().ilog2() + 1;
    assert!(*last <= (COLLECT + LATENCY * 2) * steps, "{last:?}");
}

#[test]
fn hundreds_of_ranks_leave() {
    all_leave(ranks(256));
}

#[test]
fn a_thousand_ranks_name_one_that_dies() {
    all_name_one_that_dies(1024);
}

/// With 16,384 ranks, this took 43 seconds of processor time and 2.1 GB; with 32,000 ranks, 92
/// seconds and 4.2 GB.
#[test]
#[ignore = "needs a minute and 2 GB: 16,384 ranks, or as many as COMM_TEST_RANKS says"]
fn sixteen_thousand_ranks_name_one_that_dies() {
    all_name_one_that_dies(ranks(16_384));
}

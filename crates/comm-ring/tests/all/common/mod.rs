//! Ranks as threads, and data whose reductions are exact.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Comm, Link, LinkModel, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::exact::{self, Small, elements};
use comm_sim::in_process::{self, InProcessConfig};
use comm_sim::network::{self, FaultPlan, VirtualClock};

/// The time limit of a call in real time, which none reaches even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Settings with segments so small that a few dozen elements fill many of them, and with three
/// ranks per host.
pub(crate) fn small_segments() -> RingConfig {
    let mut config = RingConfig::default();
    config.segment_bytes = 16;
    config.segments_per_pass = 2;
    let link = Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
    config.links = Some(LinkModel { ranks_per_host: 3, ..LinkModel::uniform(link, 1e-10) });
    config
}

/// Runs `rank` on every rank of a world of threads.
pub(crate) fn world<R: Send>(
    ranks: usize,
    network: &InProcessConfig,
    config: &RingConfig,
    rank: impl Fn(Comm) -> R + Sync,
) -> Vec<R> {
    in_process::run(ranks, network, |fabric| {
        let communicator = RingCommunicator::new(fabric, config.clone(), PATIENCE).unwrap();
        // In a statement of its own, so that `rank` gets the last handle.
        let comm = Comm::new(communicator).with_timeout(PATIENCE);
        rank(comm)
    })
}

/// Runs `rank` on every rank of a world in virtual time, in an order that depends on the seed.
pub(crate) fn virtual_world<R: Send>(
    ranks: usize,
    seed: u64,
    config: &RingConfig,
    rank: impl Fn(Comm, &VirtualClock) -> R + Sync,
) -> Vec<R> {
    virtual_world_on(&FaultPlan::calm(), ranks, seed, config, rank)
}

/// Runs `rank` on every rank of a world in virtual time on this network.
pub(crate) fn virtual_world_on<R: Send>(
    plan: &FaultPlan,
    ranks: usize,
    seed: u64,
    config: &RingConfig,
    rank: impl Fn(Comm, &VirtualClock) -> R + Sync,
) -> Vec<R> {
    network::run(ranks, seed, plan, |fabric, clock| {
        let communicator = RingCommunicator::new(fabric, config.clone(), Duration::from_secs(20)).unwrap();
        // In a statement of its own, so that `rank` gets the last handle.
        let comm = Comm::new(communicator).with_timeout(Duration::from_secs(20));
        rank(comm, &clock)
    })
}

/// The buffer that `rank` contributes.
pub(crate) fn contributions<T: Small>(rank: usize, len: usize) -> Vec<T> {
    elements(0..len, |at| exact::number(rank, at))
}

/// The reduction at position `at`, in exact arithmetic, rounded once at the end.
pub(crate) fn reduced<T: Small>(ranks: usize, at: usize, op: ReduceOp) -> T {
    T::of(exact::reduced(op, ranks, at))
}

/// The whole reduction.
pub(crate) fn reductions<T: Small>(ranks: usize, len: usize, op: ReduceOp) -> Vec<T> {
    elements(0..len, |at| exact::reduced(op, ranks, at))
}

/// Lengths around the world size, where off-by-one errors occur.
pub(crate) fn lengths(ranks: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, ranks - 1, ranks, ranks + 1, 67];
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

//! The program of a run: random calls of the communicator, with random settings.

use std::time::Duration;

use comm_core::{Collective, Comm, Result};
use comm_ring::schedule::Algorithm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::NetworkFabric;
use comm_sim::swarm::SwarmRank;
use comm_sim::swarm::workload::Workload;

/// Runs the program on one rank.
pub(super) fn run(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<()> {
    Workload::new(connect, algorithms).run(fabric, rank)
}

fn connect(fabric: NetworkFabric, rank: &SwarmRank<'_>) -> Result<Comm> {
    Ok(Comm::new(RingCommunicator::new(fabric, config(rank), rank.timeout())?))
}

pub(super) fn algorithms(collective: Collective) -> Vec<&'static str> {
    Algorithm::for_collective(collective).map(|row| row.name).collect()
}

/// The stream of random numbers for the settings.
const CONFIG: u64 = 2;

/// Returns settings that the seed determines.
pub(super) fn config(rank: &SwarmRank<'_>) -> RingConfig {
    let random = rank.random(CONFIG);
    let choose = |shift: u32, values: [usize; 4]| values[(random >> shift) as usize % 4];
    let mut config = RingConfig::default();
    config.window = choose(0, [2, 3, 32, 32]);
    // With few short segments on their way, a large call would take longer than its time limit.
    let shortest = if config.window < 32 { 16 << 10 } else { 1000 };
    config.segment_bytes = choose(2, [1000, 4000, 16 << 10, 256 << 10]).max(shortest);
    config.segments_per_pass = choose(4, [1, 2, 16, 16]);
    config.eager_bytes = choose(6, [0, 100, 64 << 10, 64 << 10]);
    config.part_bytes = choose(8, [1000, 10_000, 256 << 10, 256 << 10]);
    // No run makes more calls in a group, and recording them takes memory.
    config.recorded_calls = 64;
    config.announce_after = Duration::from_millis(choose(10, [5, 20, 100, 100]) as u64);
    config
}

//! Messages between two ranks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod background;
mod exchange;
mod failures;
pub(crate) mod hostile;
mod order;
mod outstanding;
mod overlap;
mod progress;

use comm_core::Comm;
use comm_ring::RingConfig;
use comm_sim::Release;
use comm_sim::in_process::InProcessConfig;

/// Networks from plain to awkward: large queues, tiny ones, bytes that arrive a few at a time,
/// memory that is released late, caches that long messages bypass.
fn networks() -> Vec<InProcessConfig> {
    let plain = InProcessConfig::default;
    vec![
        plain(),
        plain().capacity(7),
        plain().dribble(11),
        plain().release(Release::OnConsume).capacity(1000),
        plain().release(Release::OnConsume).capacity(100).dribble(5),
        plain().cached_bytes(300),
        plain().cached_bytes(300).capacity(100).dribble(8),
    ]
}

/// Small limits, so that short messages are on both sides of them.
fn tight() -> RingConfig {
    let mut config = RingConfig::default();
    (config.eager_bytes, config.part_bytes) = (256, 100);
    config
}

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    crate::common::world(ranks, &InProcessConfig::default(), &RingConfig::default(), rank)
}

/// Runs on every network, with small limits.
fn run_everywhere(ranks: usize, rank: impl Fn(Comm) + Sync) {
    for network in networks() {
        crate::common::world(ranks, &network, &tight(), |comm| {
            rank(comm.clone());
            // Without this barrier, a rank that leaves on a busy machine might not report it to a
            // slow one in time.
            let _ = comm.barrier();
        });
    }
}

/// The payload of a message, which identifies the message.
fn payload(from: usize, tag: u64, len: usize) -> Vec<u32> {
    (0..len).map(|at| (from as u32) << 24 ^ (tag as u32) << 16 ^ at as u32).collect()
}

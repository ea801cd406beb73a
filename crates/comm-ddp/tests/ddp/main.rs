//! Data-parallel training between ranks that are threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod averages;
mod buffers;
mod consensus;
mod encoded;
mod faults;
mod frozen;
mod hooked_steps;
mod hooks;
mod memory;
mod mixed_precision;
#[cfg(feature = "ndarray")]
mod ndarray;
mod optimizers;
mod overlap;
mod ring;
mod static_graph;
mod stragglers;
mod uneven;
mod uneven_sharded;
mod virtual_time;
mod weights;
mod zero;

use comm::Comm;

/// Runs `rank_main` on this many ranks, and returns the results in rank order.
fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    comm::threads::run(size, rank_main).unwrap()
}

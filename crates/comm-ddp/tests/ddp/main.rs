//! Data-parallel training between ranks that are threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod averages;
mod consensus;
mod encoded;
mod faults;
mod hooked_steps;
mod hooks;
mod memory;
mod optimizers;
mod overlap;
mod ring;
mod uneven;
mod weights;
mod zero;

use comm::Comm;

/// Runs `rank_main` on this many ranks, and returns the results in rank order.
fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    comm::threads::run(size, rank_main).unwrap()
}

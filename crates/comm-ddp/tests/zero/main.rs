//! Sharded optimizers that continue after ranks were lost, between threads and in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod deaths;
mod leaving;
mod membership;
mod training;

use comm::Comm;

/// Runs `rank_main` on this many ranks, and returns the results in rank order.
fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    comm::threads::run(size, rank_main).unwrap()
}

//! Models of candle on ranks that are threads, over the real collectives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod ancestors;
mod checkpoints;
mod collectives;
mod equivalence;
mod gradients;
mod lost;
mod optimizers;
mod parallel;
mod ranks;
mod rejoin;
mod segments;
mod transformer;
mod variables;
mod zero_rejoin;

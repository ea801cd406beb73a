//! Data-parallel training between ranks that are threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod averages;
mod consensus;
mod faults;
mod memory;
mod optimizers;
mod overlap;
mod ring;
mod room;

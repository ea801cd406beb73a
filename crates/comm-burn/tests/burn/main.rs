//! Modules of burn on ranks that are threads, over the real collectives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agreement;
mod buffers;
mod equivalence;
mod gradients;
mod ranks;
mod values;

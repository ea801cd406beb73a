//! The launcher with real processes: `commctl` starts shells, and the tests look at what is left of
//! them.

// Clippy lets tests panic, but not the helpers of an integration test.
#![allow(clippy::expect_used, clippy::panic)]

mod collectives;
mod environment;
mod failure;
mod harness;
mod output;
mod signals;

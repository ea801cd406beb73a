//! Tests of the launcher with shells as ranks.

// Clippy lets tests panic, but not the helpers of an integration test.
#![allow(clippy::expect_used, clippy::panic)]

mod collectives;
mod environment;
mod failure;
mod harness;
mod output;
mod signals;

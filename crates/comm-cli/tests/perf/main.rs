//! Tests of `commctl perf` with real processes, small sizes and short samples.

// Clippy lets tests panic, but not the helpers of an integration test.
#![allow(clippy::expect_used, clippy::panic)]

mod calibrate;
mod harness;
mod messages;
mod refusals;
mod tables;

//! Tests that run in the same processes.

mod calls;
mod conformance;
mod failures;
mod messages;

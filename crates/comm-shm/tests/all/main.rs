//! Tests of shared memory, in one program, because it takes less time to build than one per file.

mod allocated;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod fabric;
mod messages;
mod processes;

//! Tests on the emulator, in one program, because it takes less time to build than one per file.

mod ancestors;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod connect;
mod control;
mod failures;
mod groups;
mod kernels;
mod order;
mod processes;
mod reductions;
mod refusals;
mod shrink;
mod visible;
mod work;

//! Tests of the emulator, in one program, because it takes less time to build than one per file.

mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod faults;
mod groups;
mod memory;
mod processes;
mod ptx;

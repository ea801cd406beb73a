//! One suite for GPUs and NCCL, and the report of a run.
//!
//! The same cases run in an ordinary test, on the emulated device of `gpu-emu`, and in the program `gpu-check`, on a real one. A case
//! is played by processes of their own, one per rank: what crashes, hangs or breaks its device takes nothing else with it. Whoever
//! runs the suite says how such a process is started; the process [`play`]s its [`Part`], and writes down how that went.
//!
//! A case passes, fails, or is *not run*, with the reason: never is one left out in silence. Cases that work in every group are run by one
//! rank alone, and again by several, where the machine and its NCCL can have them.
//!
//! | question | file |
//! |---|---|
//! | which cases are there | `case/mod.rs`, one file for each kind beside it |
//! | what does a rank have to play with | `player.rs`, `gpu/`, `part.rs` |
//! | how can a case end | `trouble.rs`, `record.rs` |
//! | who starts the ranks, and waits for them | `run/` |
//! | where is this, and is it real | `place.rs`, `maps.rs` |
//! | how fast is it, and beside whom | `speed.rs`, `run/speed.rs` |
//! | what is said of it | `report/` |
//!
//! To add a case, write a function from a player to an outcome and give it a row in `case/mod.rs`; then break what it looks at, with
//! the emulator, in `tests/faults.rs`.
#![deny(unsafe_code)]

mod case;
mod gpu;
pub mod maps;
mod part;
mod place;
mod player;
pub mod record;
pub mod report;
pub mod run;
mod speed;
mod trouble;

pub use case::{CASES, Case, Ranks};
pub use part::Part;
pub use place::{Place, Several};
pub use player::play;
pub use trouble::{Outcome, Trouble};

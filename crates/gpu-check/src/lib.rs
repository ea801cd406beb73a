//! The test suite for GPUs and NCCL, and its report.
//!
//! The same cases run on the emulated device of `gpu-emu` in `cargo test`, and on real devices in
//! the program `gpu-check`. Each rank of a case is a separate process, so a crash, a hang or a
//! broken device affects no other case. The caller of the suite provides the program of these
//! processes, which calls [`run_rank`] with its [`CaseSpec`]. Each process writes its result to a
//! file.
//!
//! A case passes, fails, or is *not run* with a reason. Cases that work in every group run with one
//! rank, and again with several if the machine and its NCCL support that.
//!
//! To add a case, write a function from a `RankContext` to an outcome and add
//! it to the table in `case/mod.rs`; then add a fault that makes it fail in `tests/faults.rs`.
#![deny(unsafe_code)]

mod case;
mod context;
mod error;
mod gpu;
pub mod loaded;
mod machine;
pub mod record;
pub mod report;
pub mod run;
mod spec;
mod speed;

pub use case::{CASES, Case, Ranks};
pub use context::run_rank;
pub use error::{CaseError, Outcome};
pub use machine::{Machine, Placement};
pub use spec::CaseSpec;

//! Everything that the `comm` library is tested with, and nothing that it needs to run.
//!
//! - [`in_process`]: ranks as threads of one process, over byte queues that can be made as awkward as a test likes;
//! - [`verify`]: proves that a schedule computes what it should and cannot deadlock;
//! - [`mutate`]: checks that the verifier refuses every schedule that is wrong;
//! - [`conformance`]: one suite that every transport passes.
//!
//! No algorithm is known here: a collective is an iterator of [`Step`](comm_core::Step)s, whoever wrote it.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod in_process;
pub mod mutate;
mod random;
mod threads;
pub mod verify;

pub use threads::run_each;

//! Tests over the installed MPI, in processes that `mpirun` starts.
//!
//! The tests of `launch` start this program again under `mpirun`, where each process runs the tests
//! of `ranks`, one after the other, in the same order. Without `mpirun`, those do nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;
mod ranks;

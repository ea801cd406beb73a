//! Collectives and messages of the `comm` library over an installed MPI, such as Open MPI, MPICH,
//! or the MPI of a cluster's vendor.
//!
//! A program that uses [`Comm`] runs unchanged: only the line that creates the
//! handle differs. MPI then moves the bytes, so that InfiniBand and Slingshot are used by the
//! library that the cluster has for them.
//!
//! ```no_run
//! use comm_core::ReduceOp;
//!
//! // Started by mpirun.
//! let comm = comm_mpi::init()?;
//! let mut gradients = vec![comm.rank() as f32; 1000];
//! comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! comm.finalize()?;
//! # Ok::<_, comm_core::Error>(())
//! ```
//!
//! Building this crate needs MPI with its `mpicc` (or `MPICC`), and libclang, because the crate
//! [`mpi`] generates bindings of the installed MPI.
//!
//! [`MpiCommunicator`] documents the differences to other communicators, and [`MpiConfig`] the
//! settings. On a network without MPI, and where ranks must survive a failure, use the crate
//! `comm-world`.

mod agreement;
mod collectives;
mod communicator;
mod config;
mod groups;
mod messages;
mod monitored_barrier;
mod notice;
mod numerics;
mod pause;
mod raw;
mod session;

use comm_core::{Comm, Result};

pub use communicator::MpiCommunicator;
pub use config::{CallMemoryMode, MpiConfig};
pub use mpi;

/// Connects all processes of the job, with the default settings. Every process calls this.
///
/// # Errors
/// As [`MpiCommunicator::world`].
pub fn init() -> Result<Comm> {
    init_with(MpiConfig::default())
}

/// Connects all processes of the job. Every process calls this.
///
/// # Errors
/// As [`MpiCommunicator::world`].
pub fn init_with(config: MpiConfig) -> Result<Comm> {
    MpiCommunicator::world(config).map(Comm::new)
}

/// Returns the name and the version of the MPI library. Initializes it.
///
/// # Errors
/// As [`MpiCommunicator::world`].
pub fn library_version() -> Result<String> {
    raw::initialize()?;
    raw::library_version()
}

//! Calls of MPI, and their unsafe code.
//!
//! rsmpi's own interface drops the return codes of MPI, ties buffers to scopes that abort the
//! process if a request has not ended, and has no type for the operators of comm-core. So this
//! module calls the functions of `mpi::ffi`, which rsmpi generates from the header of the installed
//! MPI. It checks lengths and ranks, so that its callers need no unsafe code, except to lend
//! memory.

mod comm_handle;
mod kernel;
mod request;
mod routine;
mod runtime;
mod types;

pub(crate) use comm_handle::{CommHandle, Duplicate, NewComm, Split};
pub(crate) use request::{Operation, PinnedMemory};
pub(crate) use routine::{Area, BlockCounts, CallMemory, Routine};
pub(crate) use runtime::{BACKEND, initialize, library_version};
pub(crate) use types::{Datatype, MpiReduction, OpHandle, count_of};

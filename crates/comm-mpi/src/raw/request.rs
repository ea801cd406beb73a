//! Operations in flight, and the memory that MPI uses for them.

use std::ffi::c_int;
use std::mem::ManuallyDrop;

use comm_core::{Error, Result};
use mpi::ffi;

use super::runtime::{abort_job, call};

/// Memory that MPI uses until an operation has ended.
pub(crate) trait PinnedMemory {
    /// Returns whether the memory belongs to a caller, which gets it back when the call returns.
    fn is_borrowed(&self) -> bool {
        false
    }
}

impl PinnedMemory for Vec<u8> {}
impl PinnedMemory for () {}

/// An operation in flight, with its memory.
///
/// MPI cannot cancel a collective. So if an operation is dropped before it has ended, its memory is
/// leaked if it belongs to this library; if it belongs to a caller, the job is aborted.
#[derive(Debug)]
pub(crate) struct Operation<M: PinnedMemory> {
    request: ffi::MPI_Request,
    has_ended: bool,
    memory: ManuallyDrop<M>,
}

// SAFETY: MPI allows any thread to test a request, one at a time, and the memory can be sent.
unsafe impl<M: PinnedMemory + Send> Send for Operation<M> {}

impl<M: PinnedMemory> Operation<M> {
    /// Creates the operation of a request that MPI has started on `memory`.
    pub(super) const fn new(request: ffi::MPI_Request, memory: M) -> Self {
        Self { request, has_ended: false, memory: ManuallyDrop::new(memory) }
    }

    /// Lets MPI make progress, and returns whether the operation has ended.
    ///
    /// # Errors
    /// [`Error::Backend`] if the operation failed.
    pub(crate) fn test(&mut self) -> Result<bool> {
        if self.has_ended {
            return Ok(true);
        }
        let mut flag: c_int = 0;
        // SAFETY: the value of a constant of the library.
        let ignored = unsafe { ffi::RSMPI_STATUS_IGNORE };
        call("complete an operation", || {
            // SAFETY: the request has not ended, and `self` is borrowed mutably.
            unsafe { ffi::MPI_Test(&raw mut self.request, &raw mut flag, ignored) }
        })?;
        self.has_ended = flag != 0;
        Ok(self.has_ended)
    }

    /// Returns the memory of an operation that has ended.
    ///
    /// # Errors
    /// [`Error::Internal`] if it has not.
    pub(crate) fn into_memory(self) -> Result<M> {
        if !self.has_ended {
            return Err(Error::Internal("an operation of MPI has not ended".into()));
        }
        let mut ended = ManuallyDrop::new(self);
        // SAFETY: MPI no longer uses the memory, and `ended` is neither used again nor dropped.
        Ok(unsafe { ManuallyDrop::take(&mut ended.memory) })
    }
}

impl<M: PinnedMemory> Drop for Operation<M> {
    fn drop(&mut self) {
        if self.has_ended {
            // SAFETY: MPI no longer uses the memory, and it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        } else if self.memory.is_borrowed() {
            tracing::error!(
                "a call must end before its operation of MPI has, which uses the memory of the caller: the job ends"
            );
            abort_job();
        }
    }
}

//! Buffers whose element type is known at run time.

use crate::allocation::no_memory;
use crate::{Allocate, Allocation, AsView, AsViewMut, DType, Erased, HostView, HostViewMut, Result};

/// Elements in host memory that a communicator allocated, of a type that is known at run time: the
/// counterpart of [`Buffer`](crate::Buffer).
#[derive(Debug)]
pub struct ErasedBuffer {
    allocation: Allocation,
    dtype: DType,
}

impl ErasedBuffer {
    /// Creates a buffer of `len` zeros, in memory from `source`.
    ///
    /// # Errors
    /// Same as [`Allocate::allocate`].
    pub fn zeroed(source: &(impl Allocate + ?Sized), dtype: DType, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| no_memory(usize::MAX))?;
        Ok(Self { allocation: source.allocate(bytes)?, dtype })
    }
}

impl AsView for ErasedBuffer {
    type Element = Erased;

    fn as_view(&self) -> Result<HostView<'_>> {
        HostView::from_bytes(self.allocation.bytes(), self.dtype).ok_or_else(misaligned)
    }
}

impl AsViewMut for ErasedBuffer {
    type Element = Erased;

    fn as_view_mut(&mut self) -> Result<HostViewMut<'_>> {
        HostViewMut::from_bytes(self.allocation.bytes_mut(), self.dtype).ok_or_else(misaligned)
    }
}

/// Returns the error for an allocation that, contrary to its contract, does not start at a page
/// boundary.
fn misaligned() -> crate::Error {
    crate::Error::Internal("an allocation is not aligned".into())
}

//! Memory that other processes may read.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::io;
use std::num::NonZero;
use std::ptr::NonNull;

use crate::{Error, Result};

/// The alignment of allocations: a page, which suffices for every element type.
const ALIGNMENT: NonZero<usize> = NonZero::new(4096).unwrap();

/// A buffer of initially zeroed bytes, and the owner that frees it.
///
/// The backend decides where the bytes are: on the heap, or in memory that other processes can
/// read. They are freed when the allocation is dropped, and may outlive the communicator.
pub struct Allocation {
    start: NonNull<u8>,
    len: usize,
    /// Frees the memory when it is dropped.
    #[allow(dead_code, reason = "it is only dropped")]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the caller of `from_raw` promises that only the allocation accesses the bytes, and the
// owner is `Send`.
unsafe impl Send for Allocation {}
// SAFETY: a shared allocation exposes only `&[u8]`.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates memory on the heap, which no other process can read.
    ///
    /// # Errors
    /// [`Error::Io`] if there is not enough memory.
    pub fn on_heap(len: usize) -> Result<Self> {
        if len == 0 {
            let start = NonNull::without_provenance(ALIGNMENT);
            return Ok(Self { start, len, owner: Box::new(()) });
        }
        let layout = Layout::from_size_align(len, ALIGNMENT.get()).map_err(|_| no_memory(len))?;
        // SAFETY: the size of the layout is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| no_memory(len))?;
        Ok(Self { start, len, owner: Box::new(Heap { start, layout }) })
    }

    /// Creates an allocation from memory that `owner` frees when it is dropped.
    ///
    /// # Safety
    /// `len` bytes from `start`, a multiple of 4096, must be readable and writable until `owner` is
    /// dropped, and must keep the values last stored in them. Until then nothing in any process
    /// writes to them, and nothing in this process reads them, except through the allocation, or as
    /// requested by [`Transport::try_send`](crate::Transport::try_send).
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, len, owner }
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: they are readable while the owner lives, and written to only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    #[must_use]
    pub const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: they are writable while the owner lives, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocation").field("start", &self.start).field("len", &self.len).finish()
    }
}

/// Returns the error of a failed allocation of `bytes` bytes.
pub(crate) fn no_memory(bytes: usize) -> Error {
    Error::io(format!("allocate a buffer of {bytes} bytes"), io::ErrorKind::OutOfMemory.into())
}

/// Memory on the heap.
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: heap memory can be freed from any thread.
unsafe impl Send for Heap {}
// SAFETY: a shared `Heap` has no operations.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the allocation that used it is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Allocates memory for buffers where the backend's transfers are cheapest.
pub trait Allocate: Send + Sync {
    /// Allocates `bytes` zeroed bytes. By default they are on the heap, which is as good as any
    /// memory if peers cannot read it in place.
    ///
    /// # Errors
    /// [`Error::Io`] if there is not enough memory. The communicator remains usable.
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        Allocation::on_heap(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn heap_memory_is_zero_aligned_and_writable() {
        for len in [0, 1, 4095, 4096, 100_000] {
            let mut allocation = Allocation::on_heap(len).unwrap();
            assert_eq!(allocation.bytes(), vec![0; len]);
            assert_eq!(allocation.bytes().as_ptr().addr() % ALIGNMENT, 0);
            allocation.bytes_mut().fill(7);
            assert!(allocation.bytes().iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn an_allocation_beyond_the_address_space_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
            assert!(matches!(Allocation::on_heap(len), Err(Error::Io { .. })), "{len}");
        }
    }

    #[test]
    fn the_owner_is_dropped_with_the_allocation() {
        let mut page = Allocation::on_heap(10).unwrap();
        let start = NonNull::new(page.bytes_mut().as_mut_ptr()).unwrap();
        let owner = Arc::new(page);
        // SAFETY: the memory belongs to the owner, which does not read it.
        let allocation = unsafe { Allocation::from_raw(start, 10, Box::new(Arc::clone(&owner))) };
        assert_eq!((Arc::strong_count(&owner), allocation.bytes().len()), (2, 10));
        drop(allocation);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}

//! Memory that somebody else may have a part in.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::io;
use std::num::NonZero;
use std::ptr::NonNull;

use crate::{Error, Result};

/// Where allocations start: on a page, and so aligned for every element.
const ALIGNMENT: NonZero<usize> = NonZero::new(4096).unwrap();

/// Bytes that were zero at first, and whoever takes them back.
///
/// A backend says where they lie: on the heap, or where other processes can read them. They are given back when this is
/// dropped, whatever became of the communicator.
pub struct Allocation {
    start: NonNull<u8>,
    len: usize,
    /// Gives the memory back when it is dropped.
    #[allow(dead_code, reason = "it is only dropped")]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the bytes belong to the allocation alone, as who makes one promises, and its owner may change threads.
unsafe impl Send for Allocation {}
// SAFETY: shared, it only shows bytes to be read.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Memory on the heap, which no other process can read.
    ///
    /// # Errors
    /// [`Error::Io`] if there is not so much memory.
    pub fn on_heap(len: usize) -> Result<Self> {
        if len == 0 {
            let start = NonNull::without_provenance(ALIGNMENT);
            return Ok(Self { start, len, owner: Box::new(()) });
        }
        let layout = Layout::from_size_align(len, ALIGNMENT.get()).map_err(|_| no_memory(len))?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| no_memory(len))?;
        Ok(Self { start, len, owner: Box::new(Heap { start, layout }) })
    }

    /// Memory that `owner` gives back when it is dropped.
    ///
    /// # Safety
    /// `len` bytes from `start`, a multiple of 4096, must be readable and writable until `owner` is dropped, and hold
    /// what was stored there last. Until then nothing in any process writes to them, and nothing in this process reads
    /// them, but through the allocation, except as [`Transport::try_send`](crate::Transport::try_send) was asked to.
    #[must_use]
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, len, owner }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: they are readable while the owner lives, and written to only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be written.
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

/// The error of a buffer of so many bytes that there is no memory for.
pub(crate) fn no_memory(bytes: usize) -> Error {
    Error::io(format!("allocate a buffer of {bytes} bytes"), io::ErrorKind::OutOfMemory.into())
}

/// Memory of the heap.
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the heap takes memory back from any thread.
unsafe impl Send for Heap {}
// SAFETY: shared, it does nothing.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and whoever used it is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// What gives out memory for buffers, from where its transfers are cheapest.
pub trait Allocate: Send + Sync {
    /// So many bytes, all zero. The default is memory on the heap: as good as any where no peer can read it in place.
    ///
    /// # Errors
    /// [`Error::Io`] if there is not so much memory. The communicator remains usable.
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
    fn more_than_there_can_be_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
            assert!(matches!(Allocation::on_heap(len), Err(Error::Io { .. })), "{len}");
        }
    }

    #[test]
    fn the_owner_is_dropped_with_the_memory_and_not_before() {
        let mut page = Allocation::on_heap(10).unwrap();
        let start = NonNull::new(page.bytes_mut().as_mut_ptr()).unwrap();
        let owner = Arc::new(page);
        // SAFETY: the memory belongs to the owner, through which nobody looks at it.
        let allocation = unsafe { Allocation::from_raw(start, 10, Box::new(Arc::clone(&owner))) };
        assert_eq!((Arc::strong_count(&owner), allocation.bytes().len()), (2, 10));
        drop(allocation);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}

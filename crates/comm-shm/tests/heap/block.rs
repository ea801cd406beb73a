//! Blocks of the heap, which tests allocate with any layout.
#![allow(unsafe_code, reason = "an allocator has no other interface")]

use std::alloc::{GlobalAlloc, Layout};

use super::HEAP;

/// A block, which is freed when it is dropped.
#[derive(Debug)]
pub(crate) struct TestBlock {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: blocks can be used and freed in any thread.
unsafe impl Send for TestBlock {}

pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

impl TestBlock {
    /// Allocates zeros, or returns `None`.
    pub(crate) fn zeroed(layout: Layout) -> Option<Self> {
        assert_ne!(layout.size(), 0);
        // SAFETY: the size is not zero.
        let start = unsafe { HEAP.alloc_zeroed(layout) };
        assert!(start.addr().is_multiple_of(layout.align()));
        (!start.is_null()).then_some(Self { start, layout })
    }

    /// Allocates bytes of this value, or returns `None`.
    pub(crate) fn filled(layout: Layout, value: u8) -> Option<Self> {
        assert_ne!(layout.size(), 0);
        // SAFETY: the size is not zero.
        let start = unsafe { HEAP.alloc(layout) };
        assert!(start.addr().is_multiple_of(layout.align()));
        if start.is_null() {
            return None;
        }
        let mut block = Self { start, layout };
        // SAFETY: the block has that many bytes.
        unsafe { start.write_bytes(value, layout.size()) };
        assert_eq!(block.bytes_mut().len(), layout.size());
        Some(block)
    }

    /// Changes the size. The bytes of the old size are kept, and others are set to `value`.
    pub(crate) fn resize(&mut self, size: usize, value: u8) {
        // SAFETY: the block has this layout, and the size is not zero.
        let start = unsafe { HEAP.realloc(self.start, self.layout, size) };
        assert!(!start.is_null() && start.addr().is_multiple_of(self.layout.align()));
        let kept = self.layout.size().min(size);
        (self.start, self.layout) = (start, layout(size, self.layout.align()));
        // SAFETY: the block has `size` bytes.
        let added = unsafe { start.add(kept) };
        // SAFETY: as above.
        unsafe { added.write_bytes(value, size - kept) };
    }

    pub(crate) fn address(&self) -> usize {
        self.start.addr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block was initialized, and is mutated only through a mutable reference.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block was initialized, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for TestBlock {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout.
        unsafe { HEAP.dealloc(self.start, self.layout) };
    }
}

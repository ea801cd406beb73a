//! A global allocator whose large blocks peers read in place.
//!
//! | question | file |
//! |---|---|
//! | where are the blocks of a segment | `heap/segments.rs`, `heap/free_ranges.rs` |
//! | where are the segments | `heap/arena.rs` |
//! | how are segments created and released | `heap/large.rs`, `heap/available.rs` |
//! | what happens in a fork | `heap/fork.rs` |
#![expect(unsafe_code, reason = "an allocator handles memory by address")]

mod arena;
mod available;
mod fork;
mod free_ranges;
pub(crate) mod large;
mod segments;

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use crate::regions::FoundRegion;

/// A global allocator whose large blocks the other ranks of a host read in place.
///
/// ```
/// #[global_allocator]
/// static HEAP: comm_shm::Heap = comm_shm::Heap::new();
///
/// fn main() {
///     let gradients = vec![0.0_f32; 1 << 20];
///     assert!(comm_shm::Heap::usage().used_bytes >= 4 << 20);
///     drop(gradients);
/// }
/// ```
///
/// Then vectors, boxes and tensors have what [`Fabric::allocate`](comm_core::Fabric::allocate)
/// gives a buffer: collectives over shared memory do not copy them into a ring or into temporary
/// memory. Blocks of fewer than [`Heap::LARGE_BYTES_MIN`] bytes come from the allocator of the
/// system.
///
/// Large blocks are in segments: files of memory that other ranks of the same user map for reading,
/// from the first call on in which one of these blocks is sent to them. They can read all of a
/// segment, so also other large blocks. A segment holds many blocks and one file descriptor. It has
/// all its memory from the beginning, so a block takes memory before it is written. Segments
/// without blocks are released, except for 128 MiB, or as many bytes as are in use.
///
/// If a segment cannot be created, blocks come from the allocator of the system, and collectives
/// copy them: if it would take more than half of the memory that the machine and the control group
/// have left, if file descriptors are exhausted, if the address space or the size of files is
/// limited (`ulimit -v`, `ulimit -f`), or on kernels older than 5.1.
///
/// A forked child has its own copy of all blocks, as usual. But in the parent, too, blocks that
/// existed at the time of a fork are private from then on: collectives copy them, and pages that
/// are written take memory again, until the blocks are freed. This does not concern children that
/// are created by `posix_spawn` or `vfork`, as by [`std::process::Command`] in most cases. A child
/// of `clone(2)` without `CLONE_VM`, or of `_Fork`, must execute another program at once, because
/// it shares the memory of large blocks with its parent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap;

/// The use of memory by [`Heap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapUsage {
    /// The number of segments.
    pub segments: usize,
    /// The bytes of all segments.
    pub segment_bytes: usize,
    /// The bytes of all large blocks in segments, in whole pages.
    pub used_bytes: usize,
    /// The number of large blocks so far that came from the allocator of the system, because no
    /// segment could be created.
    pub fallbacks: u64,
}

impl Heap {
    /// The smallest block that lies in a segment.
    pub const LARGE_BYTES_MIN: usize = 1 << 20;

    /// Creates the allocator. All values share the same segments.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }

    /// Returns the current use of memory.
    #[must_use]
    pub fn usage() -> HeapUsage {
        large::usage()
    }
}

#[inline]
const fn is_small(size: usize) -> bool {
    size < Heap::LARGE_BYTES_MIN
}

// SAFETY: blocks of the heap are disjoint, have the requested size and alignment, and stay mapped
// until they are freed; all others are those of the system's allocator.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_small(layout.size()) {
            // SAFETY: the caller's promises are those of `System`.
            unsafe { System.alloc(layout) }
        } else {
            // SAFETY: as above.
            unsafe { alloc_large(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_small(layout.size()) {
            // SAFETY: small blocks were allocated by `System`.
            unsafe { System.dealloc(start, layout) };
        } else {
            // SAFETY: the caller's promises are those of this function.
            unsafe { dealloc_large(start, layout) };
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_small(layout.size()) {
            // SAFETY: the caller's promises are those of `System`.
            unsafe { System.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { alloc_large_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_small(layout.size()) && is_small(new_size) {
            // SAFETY: the block was allocated by `System`, and the caller's promises are its own.
            return unsafe { System.realloc(start, layout, new_size) };
        }
        // SAFETY: the caller promises it.
        unsafe { realloc_large(start, layout, new_size) }
    }
}

/// Allocates a large block.
///
/// # Safety
/// As [`GlobalAlloc::alloc`].
#[cold]
unsafe fn alloc_large(layout: Layout) -> *mut u8 {
    match large::allocate(layout) {
        Some(block) => pointer(block.start),
        // SAFETY: the caller's promises are those of `System`.
        None => unsafe { System.alloc(layout) },
    }
}

/// Allocates a large block of zeros.
///
/// # Safety
/// As [`GlobalAlloc::alloc_zeroed`].
#[cold]
unsafe fn alloc_large_zeroed(layout: Layout) -> *mut u8 {
    let Some(block) = large::allocate(layout) else {
        // SAFETY: the caller's promises are those of `System`.
        return unsafe { System.alloc_zeroed(layout) };
    };
    let start = pointer(block.start);
    // SAFETY: the block has this many bytes.
    unsafe { start.write_bytes(0, block.dirty) };
    start
}

/// Frees a large block.
///
/// # Safety
/// As [`GlobalAlloc::dealloc`].
#[cold]
unsafe fn dealloc_large(start: *mut u8, layout: Layout) {
    if large::contains(start.addr()) {
        large::free(start.addr());
    } else {
        // SAFETY: a block outside of the arena was allocated by `System`.
        unsafe { System.dealloc(start, layout) };
    }
}

/// Changes the size of a block that is large before or after.
///
/// # Safety
/// As [`GlobalAlloc::realloc`].
#[cold]
unsafe fn realloc_large(start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
    let is_of_heap = !is_small(layout.size()) && large::contains(start.addr());
    if is_of_heap && !is_small(new_size) && large::resize(start.addr(), new_size) {
        return start;
    }
    let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else { return null_mut() };
    let block = if is_small(new_size) { None } else { large::allocate(new_layout) };
    let new = match block {
        Some(block) => pointer(block.start),
        // SAFETY: the block was allocated by `System`, and the caller's promises are its own.
        None if !is_of_heap => return unsafe { System.realloc(start, layout, new_size) },
        // SAFETY: the caller promises that the size is not zero.
        None => unsafe { System.alloc(new_layout) },
    };
    if !new.is_null() {
        // SAFETY: both blocks have this many bytes, and the new one is disjoint from the old one.
        unsafe { start.copy_to_nonoverlapping(new, layout.size().min(new_size)) };
        // SAFETY: the caller gives up the old block.
        unsafe { Heap.dealloc(start, layout) };
    }
    new
}

fn pointer(address: usize) -> *mut u8 {
    with_exposed_provenance_mut(address)
}

/// Returns the segment that contains all of these bytes and their offset in it, if peers can read
/// them there.
#[inline]
pub(crate) fn find(bytes: &[u8]) -> Option<(FoundRegion<'_>, u64)> {
    let start = bytes.as_ptr().addr();
    if !large::contains(start) {
        return None;
    }
    let location = large::find(start..start + bytes.len())?;
    // SAFETY: the bytes are part of a block as long as they are borrowed, and until all blocks of
    // a segment are freed its file is open.
    let file = unsafe { BorrowedFd::borrow_raw(location.file) };
    Some((FoundRegion::Heap { id: location.region, file }, location.offset))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

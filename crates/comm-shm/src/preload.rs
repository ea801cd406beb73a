//! The heap for `libcomm_heap.so`, and that library for the transport. Not part of the API.
#![expect(unsafe_code, reason = "calls a C function of another library")]

use std::alloc::Layout;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::with_exposed_provenance_mut;

use crate::heap::large;
use crate::regions::FoundRegion;

/// The ids of regions of the library have this bit; ids of a program do not.
const PRELOADED: u64 = 1 << 63;

/// A block of memory.
#[derive(Debug, Clone, Copy)]
pub struct PreloadBlock {
    /// Its first byte.
    pub start: *mut u8,
    /// The number of bytes from its start that may be nonzero.
    pub dirty: usize,
}

/// The segment that contains some bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct PreloadLocation {
    /// The id of the region.
    pub region: u64,
    /// The offset of the bytes in the region.
    pub offset: u64,
    /// The file of the region, which stays open as long as the bytes are part of a block.
    pub file: RawFd,
}

/// Allocates a block in a segment, if there is one for it.
#[must_use]
pub fn allocate(layout: Layout) -> Option<PreloadBlock> {
    let block = large::allocate(layout)?;
    Some(PreloadBlock { start: with_exposed_provenance_mut(block.start), dirty: block.dirty })
}

/// Whether an address is in a segment.
#[inline]
#[must_use]
pub fn contains(address: usize) -> bool {
    large::contains(address)
}

/// Frees a block in a segment.
pub fn free(block: usize) {
    large::free(block);
}

/// Changes the size of a block in a segment in place, if possible. Returns whether it did.
#[must_use]
pub fn resize(block: usize, size: usize) -> bool {
    large::resize(block, size)
}

/// Returns the size of a block in a segment.
#[must_use]
pub fn len_of(block: usize) -> usize {
    large::len_of(block)
}

/// Returns the segment that contains all of these bytes, if peers can read them in it.
#[must_use]
pub fn find(start: usize, len: usize) -> Option<PreloadLocation> {
    if !large::contains(start) {
        return None;
    }
    let found = large::find(start..start.checked_add(len)?)?;
    Some(PreloadLocation { region: found.region | PRELOADED, offset: found.offset, file: found.file })
}

/// The function of the library that finds a segment.
pub(crate) type FindSegment = unsafe extern "C" fn(usize, usize, *mut PreloadLocation) -> bool;

/// Returns the function of the library, if it is loaded.
pub(crate) fn find_segment() -> Option<FindSegment> {
    // SAFETY: the name ends with a zero.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"comm_heap_find_v1".as_ptr()) };
    // SAFETY: only the library has a function of this name, whose version stands for its type.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, FindSegment>(symbol) })
}

/// Returns the segment of the library that contains all of these bytes and their offset in it.
pub(crate) fn find_in(find: FindSegment, bytes: &[u8]) -> Option<(FoundRegion<'_>, u64)> {
    let mut location = PreloadLocation::default();
    // SAFETY: the location is valid for writes.
    if !unsafe { find(bytes.as_ptr().addr(), bytes.len(), &raw mut location) } {
        return None;
    }
    // SAFETY: as long as the bytes are borrowed they are part of a block, whose file is open.
    let file = unsafe { BorrowedFd::borrow_raw(location.file) };
    Some((FoundRegion::Heap { id: location.region, file }, location.offset))
}

//! Host memory that was allocated for access by a device.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::ffi::HostMemory;
use crate::sync::lock;

use super::memory::POISON;

const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

#[derive(Debug)]
struct Range {
    length: usize,
    _pages: Pages,
}

/// Pages whose address was returned to the caller. No reference to them exists until they are
/// freed.
#[derive(Debug)]
struct Pages(*mut [Page]);

// SAFETY: the pages belong to the owner of this value; their address is valid in any thread.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from a box in `allocate`, and is converted back only here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

pub(crate) fn allocate(length: usize) -> HostMemory {
    let pages = vec![Page([POISON; PAGE]); length.div_ceil(PAGE)].into_boxed_slice();
    let pages = Box::into_raw(pages);
    let address = pages.cast::<Page>().expose_provenance();
    lock(&RANGES).insert(address, Range { length, _pages: Pages(pages) });
    HostMemory::at(address)
}

/// Frees memory of [`allocate`]. Returns false if it is other memory or already freed.
pub(crate) fn free(memory: HostMemory) -> bool {
    lock(&RANGES).remove(&memory.address()).is_some()
}

/// Returns the number of ranges.
pub(crate) fn live() -> usize {
    lock(&RANGES).len()
}

/// Returns whether `length` bytes at `address` lie in one pinned range.
pub(crate) fn contains(address: usize, length: usize) -> bool {
    holds(&lock(&RANGES), address, length)
}

fn holds(ranges: &BTreeMap<usize, Range>, address: usize, length: usize) -> bool {
    let before = ranges.range(..=address).next_back();
    before.is_some_and(|(base, range)| {
        address - base < range.length && length <= range.length - (address - base)
    })
}

/// Reads pinned bytes, or returns `None` if they are not pinned.
pub(crate) fn read(memory: HostMemory, length: usize) -> Option<Vec<u8>> {
    let ranges = lock(&RANGES);
    // SAFETY: the range is pinned and stays so while the table is locked.
    holds(&ranges, memory.address(), length).then(|| unsafe { memory.read(length) })
}

/// Writes pinned bytes. Returns false if they are not pinned.
pub(crate) fn write(memory: HostMemory, bytes: &[u8]) -> bool {
    let ranges = lock(&RANGES);
    let pinned = holds(&ranges, memory.address(), bytes.len());
    if pinned {
        // SAFETY: the range is pinned and stays so while the table is locked; by the rules of CUDA,
        // the caller does not read memory while a device writes it.
        unsafe { memory.write(bytes) };
    }
    pinned
}

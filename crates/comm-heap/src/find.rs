//! The function by which the transport for shared memory finds segments.
#![expect(unsafe_code, reason = "exports a C function")]

use comm_shm::preload;
use comm_shm::preload::PreloadLocation;

/// Stores the segment that contains `len` bytes from `start`, and returns whether there is one that
/// peers can read.
///
/// # Safety
/// `location` is valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn comm_heap_find_v1(start: usize, len: usize, location: *mut PreloadLocation) -> bool {
    let Some(found) = preload::find(start, len) else { return false };
    // SAFETY: the caller promises it.
    unsafe { location.write(found) };
    true
}

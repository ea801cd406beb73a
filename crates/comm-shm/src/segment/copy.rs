//! Copies bytes into memory that another process reads.

use comm_core::{copy_raw, copy_raw_non_temporal};

use crate::copy_path::CopyPath;

/// The most bytes of a box that are copied at once.
const PART_BYTES_MAX: usize = 2048;

/// Copies bytes to an address, along a path.
///
/// # Safety
/// The address is valid for writing them, and does not overlap with them.
#[inline]
pub(super) unsafe fn copy_along(path: CopyPath, bytes: &[u8], into: *mut u8) {
    match path {
        // SAFETY: as the caller promises.
        CopyPath::Cached => unsafe { copy_raw(bytes.as_ptr(), into, bytes.len()) },
        // SAFETY: the same.
        CopyPath::NonTemporal => unsafe { copy_raw_non_temporal(bytes.as_ptr(), into, bytes.len()) },
    }
}

/// Copies bytes to lines of a box, which this processor has usually taken from the reader by now.
/// More than 2 KiB are copied in parts: glibc copies them at once with `rep movsb` on x86-64, and
/// messages of 2 to 4 KiB were measured to take longer.
///
/// # Safety
/// As for [`copy_along`].
#[inline]
pub(super) unsafe fn copy_short_along(path: CopyPath, bytes: &[u8], mut into: *mut u8) {
    let part_bytes = match path {
        CopyPath::Cached => PART_BYTES_MAX,
        CopyPath::NonTemporal => usize::MAX,
    };
    for part in bytes.chunks(part_bytes) {
        // SAFETY: the address is that of these bytes, as far as the caller promises.
        unsafe { copy_along(path, part, into) };
        into = into.wrapping_byte_add(part.len());
    }
}

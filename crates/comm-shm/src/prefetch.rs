//! Lets the processor fetch cache lines before they are used.
#![expect(unsafe_code, reason = "the instructions have no other interface")]

/// The least size of a cache line of the processors for which there are instructions here.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
const LINE_BYTES: usize = 64;

/// The most bytes that are fetched together before they are read: 2 KiB and a header. With more,
/// messages of 4 KiB were measured to be faster, but all-reduces of as many bytes to be slower.
pub(crate) const READ_BYTES_MAX: usize = 2048 + 128;

/// The next access to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    /// The lines are also taken from the caches of other processors.
    Write,
}

/// Starts to fetch the lines of `len` bytes. Does nothing where no instruction is known, and for
/// addresses that are not mapped.
#[inline]
pub(crate) fn lines(start: *const u8, len: usize, intent: Intent) {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let past = start.addr() % LINE_BYTES;
        let first = start.wrapping_byte_sub(past);
        for at in (0..past + len).step_by(LINE_BYTES) {
            line(first.wrapping_byte_add(at), intent);
        }
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    let _ = (start, len, intent);
}

// Not the intrinsics: that to write becomes one to read unless it is known at compile time that
// the processor has it. A processor without it does nothing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn line(line: *const u8, intent: Intent) {
    use std::arch::asm;

    match intent {
        // SAFETY: a hint, which accesses no memory as far as a program can tell, at any address.
        Intent::Read => unsafe { asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags)) },
        // SAFETY: another such hint.
        Intent::Write => unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) },
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn line(line: *const u8, intent: Intent) {
    use std::arch::asm;

    match intent {
        // SAFETY: a hint, which accesses no memory as far as a program can tell, at any address.
        Intent::Read => unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags))
        },
        // SAFETY: another such hint.
        Intent::Write => unsafe {
            asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags))
        },
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn any_address_can_be_named() {
        let bytes = [1_u8; 300];
        for intent in [Intent::Read, Intent::Write] {
            for (start, len) in [
                (bytes.as_ptr(), 300),
                (std::ptr::null(), 200),
                (std::ptr::without_provenance(usize::MAX), 9),
            ] {
                lines(start, len, intent);
            }
        }
        assert_eq!(bytes, [1; 300]);
    }
}

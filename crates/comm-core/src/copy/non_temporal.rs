//! Copies with non-temporal stores, which write to memory and bypass the caches.
//!
//! Before an ordinary store, its line has to be fetched: from memory, or from the cache of another
//! core that read it. A non-temporal store fetches nothing, and whoever reads the bytes next finds
//! them in memory.

/// Copies `len` bytes with non-temporal stores. Later stores of this thread become visible after
/// them.
///
/// # Safety
/// `from` must be readable and `into` writable for `len` bytes, and the two must not overlap.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_raw_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::ptr::copy_nonoverlapping;

    const LINE: usize = 64;
    let head = into.align_offset(LINE).min(len);
    let tail = head + (len - head) / LINE * LINE;
    // SAFETY: `head` is at most `len`.
    unsafe { copy_nonoverlapping(from, into, head) };
    // Only whole lines, because a partial one would be written to memory in parts.
    for at in (head..tail).step_by(size_of::<__m128i>()) {
        let (source, target) = (from.wrapping_add(at).cast(), into.wrapping_add(at).cast());
        // SAFETY: the word at `at` ends no later than `tail`, which is at most `len`; the load
        // needs no alignment.
        let word = unsafe { _mm_loadu_si128(source) };
        // SAFETY: as above; `into` is aligned from `head` on, and every x86-64 processor has these
        // instructions.
        unsafe { _mm_stream_si128(target, word) };
    }
    let (source, target) = (from.wrapping_add(tail), into.wrapping_add(tail));
    // SAFETY: the bytes after `tail` are the rest of the `len` bytes.
    unsafe { copy_nonoverlapping(source, target, len - tail) };
    // Non-temporal stores are not ordered with other stores, not even by a release store. SAFETY:
    // every x86-64 processor has the instruction.
    unsafe { _mm_sfence() };
}

/// Copies `len` bytes with ordinary stores.
///
/// # Safety
/// `from` must be readable and `into` writable for `len` bytes, and the two must not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_raw_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, into, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_and_no_other_is_copied_at_every_alignment() {
        let from: Vec<u8> = (0..400).map(|at| (at % 251 + 1) as u8).collect();
        for start in 0..70 {
            for skip in [0, 1, 7, 8] {
                for len in [0, 1, 15, 63, 64, 65, 128, 200, 300] {
                    let mut into = vec![0; 400];
                    // SAFETY: both are longer than what is copied.
                    unsafe {
                        super::copy_raw_non_temporal(from[skip..].as_ptr(), into[start..].as_mut_ptr(), len)
                    };
                    assert_eq!(into[start..start + len], from[skip..skip + len]);
                    assert!(into[..start].iter().chain(&into[start + len..]).all(|byte| *byte == 0));
                }
            }
        }
    }
}

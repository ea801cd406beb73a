//! Copies with non-temporal stores, which write to memory and bypass the caches.
//!
//! Before an ordinary store, its line has to be fetched: from memory, or from the cache of another
//! core that read it. A non-temporal store fetches nothing, and whoever reads the bytes next finds
//! them in memory.

use std::ptr::copy_nonoverlapping;

/// Copies `len` bytes with non-temporal stores. Later stores of this thread become visible after
/// them.
///
/// # Safety
/// `from` must be readable and `into` writable for `len` bytes, and the two must not overlap.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_raw_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    let copy_lines = if is_x86_feature_detected!("avx") { lines::copy_avx } else { lines::copy_sse2 };
    // SAFETY: the caller promises the rest, and every x86-64 processor has SSE2.
    unsafe { copy_with(copy_lines, from, into, len) };
}

/// Copies `len` bytes with ordinary stores.
///
/// # Safety
/// `from` must be readable and `into` writable for `len` bytes, and the two must not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_raw_non_temporal(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { copy_nonoverlapping(from, into, len) };
}

/// Copies `len` bytes, all whole lines of the target with `copy_lines`: a partial one would be
/// written to memory in parts.
///
/// # Safety
/// As for [`copy_raw_non_temporal`], and the machine must have the instructions of `copy_lines`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_with(copy_lines: lines::CopyLines, from: *const u8, into: *mut u8, len: usize) {
    let head = into.align_offset(lines::LINE).min(len);
    let tail = head + (len - head) / lines::LINE * lines::LINE;
    // The lines first: a processor completes stores in order, and the others wait for their lines.
    // SAFETY: the lines end at `tail`, at most `len`, and `into` is aligned from `head` on.
    unsafe { copy_lines(from.wrapping_add(head), into.wrapping_add(head), tail - head) };
    // SAFETY: `head` is at most `len`.
    unsafe { copy_nonoverlapping(from, into, head) };
    let (source, target) = (from.wrapping_add(tail), into.wrapping_add(tail));
    // SAFETY: the bytes after `tail` are the rest of the `len` bytes.
    unsafe { copy_nonoverlapping(source, target, len - tail) };
    // Non-temporal stores are not ordered with other stores, not even by a release store. SAFETY:
    // every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies of whole lines. A line that is written in two halves takes less time than one in four
/// quarters.
#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
    };

    pub(super) const LINE: usize = 64;

    /// Copies whole lines with non-temporal stores.
    ///
    /// Callers must ensure that the source is readable and the target writable for the length, that
    /// the two do not overlap, and that target and length are multiples of [`LINE`].
    pub(super) type CopyLines = unsafe fn(*const u8, *mut u8, usize);

    /// A [`CopyLines`] for every x86-64 processor.
    pub(super) unsafe fn copy_sse2(from: *const u8, into: *mut u8, len: usize) {
        for at in (0..len).step_by(size_of::<__m128i>()) {
            let (source, target) = (from.wrapping_add(at).cast(), into.wrapping_add(at).cast());
            // SAFETY: the caller promises that the bytes are readable; the load needs no alignment.
            let word = unsafe { _mm_loadu_si128(source) };
            // SAFETY: the caller promises that the bytes are writable and aligned.
            unsafe { _mm_stream_si128(target, word) };
        }
    }

    /// A [`CopyLines`] for processors with AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy_avx(from: *const u8, into: *mut u8, len: usize) {
        for at in (0..len).step_by(size_of::<__m256i>()) {
            let (source, target) = (from.wrapping_add(at).cast(), into.wrapping_add(at).cast());
            // SAFETY: the caller promises that the bytes are readable; the load needs no alignment.
            let word = unsafe { _mm256_loadu_si256(source) };
            // SAFETY: the caller promises that the bytes are writable and aligned.
            unsafe { _mm256_stream_si256(target, word) };
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_and_no_other_is_copied_at_every_alignment() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has SSE2, and the checker passes valid memory.
        check(|from, into, len| unsafe { super::copy_with(super::lines::copy_sse2, from, into, len) });
        // SAFETY: the checker passes valid memory.
        check(|from, into, len| unsafe { super::copy_raw_non_temporal(from, into, len) });
    }

    fn check(copy: impl Fn(*const u8, *mut u8, usize)) {
        let from: Vec<u8> = (0..400).map(|at| (at % 251 + 1) as u8).collect();
        for start in 0..70 {
            for skip in [0, 1, 7, 8] {
                for len in [0, 1, 15, 63, 64, 65, 128, 200, 300] {
                    let mut into = vec![0; 400];
                    copy(from[skip..].as_ptr(), into[start..].as_mut_ptr(), len);
                    assert_eq!(into[start..start + len], from[skip..skip + len]);
                    assert!(into[..start].iter().chain(&into[start + len..]).all(|byte| *byte == 0));
                }
            }
        }
    }
}

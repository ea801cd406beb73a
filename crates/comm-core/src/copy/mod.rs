//! Copies of memory that are fast at every alignment, and copies that bypass the caches.
//!
//! glibc copies blocks of more than two KiB with the instruction `rep movsb`. On AMD's Zen 3, that
//! takes up to fifteen times as long (3 instead of 45 GB/s) if the destination, taken modulo the
//! size of a page, is up to 31 bytes after the source. That is common: memory shared between ranks
//! begins at a page, and `malloc` places a large buffer 16 bytes after the start of one. Blocks
//! that lie so are copied in pieces for which glibc uses loads and stores, which are as fast as
//! `rep movsb` is otherwise. On Zen 5, `rep movsb` is slowed down far less, and beyond the
//! first-level cache it is faster than pieces.
#![expect(unsafe_code, reason = "memory that another process can write is copied by address")]

mod non_temporal;

use std::ptr::copy_nonoverlapping;
use std::sync::LazyLock;

pub use non_temporal::copy_raw_non_temporal;

/// The size of a page for the processor's comparison of addresses.
const PAGE: usize = 4096;
/// The distances after a multiple of the page size that are slow, with a margin for processors with
/// longer vectors.
const SLOW_BELOW: usize = 64;
/// The size of pieces, for which no version of glibc uses `rep movsb`.
const PIECE: usize = 1024;
/// Shorter blocks are copied as a whole.
const WHOLE_MAX: usize = 2048;

/// Copies a slice, like [`slice::copy_from_slice`], but at full speed wherever the two lie.
///
/// # Panics
/// If the two slices have different lengths.
#[inline]
pub fn copy<T: Copy>(into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "the slices of a copy have different lengths");
    // SAFETY: both slices have that many bytes, and a mutable slice overlaps no other.
    unsafe { copy_raw(from.as_ptr().cast(), into.as_mut_ptr().cast(), size_of_val(from)) };
}

/// Copies a slice, like [`slice::copy_from_slice`], with stores that bypass the caches. Faster if
/// the copy is not read before other data has replaced it in the caches.
///
/// # Panics
/// If the two slices have different lengths.
pub fn copy_non_temporal<T: Copy>(into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "the slices of a copy have different lengths");
    // SAFETY: as in `copy`.
    unsafe { copy_raw_non_temporal(from.as_ptr().cast(), into.as_mut_ptr().cast(), size_of_val(from)) };
}

/// Copies `len` bytes, like [`std::ptr::copy_nonoverlapping`], but at full speed wherever the two
/// lie.
///
/// # Safety
/// `from` must be readable and `into` writable for `len` bytes, and the two must not overlap.
#[inline]
pub unsafe fn copy_raw(from: *const u8, into: *mut u8, len: usize) {
    if len <= WHOLE_MAX || !is_slow(from, into) || !*PIECES_ARE_FASTER {
        // SAFETY: as the caller promises.
        unsafe { copy_nonoverlapping(from, into, len) };
    } else {
        // SAFETY: as the caller promises.
        unsafe { copy_in_pieces(from, into, len) };
    }
}

fn is_slow(from: *const u8, into: *const u8) -> bool {
    let distance = into.addr().wrapping_sub(from.addr()) % PAGE;
    (1..SLOW_BELOW).contains(&distance)
}

/// Whether this processor copies pieces faster than blocks that lie so.
static PIECES_ARE_FASTER: LazyLock<bool> = LazyLock::new(|| !is_zen_5());

/// Whether this is a processor of AMD's family 0x1a.
#[cfg(target_arch = "x86_64")]
fn is_zen_5() -> bool {
    use std::arch::x86_64::__cpuid;

    let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
    // "AuthenticAMD"
    let is_amd = [vendor.ebx, vendor.edx, vendor.ecx] == [0x6874_7541, 0x6974_6e65, 0x444d_4163];
    let (base, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
    is_amd && base == 0xf && extended == 0x1a - 0xf
}

/// Whether this is a processor of AMD's family 0x1a.
#[cfg(not(target_arch = "x86_64"))]
const fn is_zen_5() -> bool {
    false
}

/// # Safety
/// As for [`copy_raw`].
#[cold]
unsafe fn copy_in_pieces(from: *const u8, into: *mut u8, len: usize) {
    for at in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - at);
        // SAFETY: the piece ends no later than the block.
        unsafe { copy_nonoverlapping(from.wrapping_add(at), into.wrapping_add(at), piece) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_no_other_is_copied_wherever_the_two_lie() {
        let from: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251 + 1) as u8).collect();
        for distance in [0, 1, 16, 31, 63, 64, 100, PAGE - 1] {
            for len in [0, 1, PIECE, WHOLE_MAX, WHOLE_MAX + 1, 3 * PIECE, 3 * PIECE + 1, PAGE + 77] {
                let mut into = vec![0; 4 * PAGE];
                let base = from.as_ptr().addr().wrapping_sub(into.as_ptr().addr()) % PAGE;
                let at = (base + distance) % PAGE;
                let is_slow = is_slow(from.as_ptr(), into[at..].as_ptr());
                assert_eq!(is_slow, (1..64).contains(&distance), "{distance}");
                for copy in [copy_raw, copy_in_pieces] {
                    into.fill(0);
                    // SAFETY: both vectors have that many bytes from there.
                    unsafe { copy(from.as_ptr(), into[at..].as_mut_ptr(), len) };
                    assert_eq!(into[at..at + len], from[..len], "{distance} {len}");
                    assert!(into[..at].iter().chain(&into[at + len..]).all(|byte| *byte == 0));
                }
            }
        }
    }

    #[test]
    fn elements_are_copied_whole() {
        let from: Vec<u64> = (0..1000).collect();
        let mut into = vec![0; 1000];
        copy(&mut into, &from);
        assert_eq!(into, from);
        into.fill(0);
        copy_non_temporal(&mut into, &from);
        assert_eq!(into, from);
        copy::<u64>(&mut [], &[]);
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn slices_of_different_lengths_are_a_mistake_of_the_caller() {
        copy(&mut [0_u8; 2], &[1]);
    }
}

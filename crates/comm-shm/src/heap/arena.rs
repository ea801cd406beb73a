//! The addresses that are reserved for the segments of the heap.
//!
//! All segments lie in one range, so two loads tell whether a block belongs to the heap. The range
//! has equal parts, each for the segments under one lock.
#![expect(unsafe_code, reason = "addresses are reserved and mapped")]

use std::io;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::MapFlags;
use rustix::process::{Resource, getrlimit};

use super::segments::SEGMENT_UNIT;
use crate::region::{Region, reserve};

/// The most bytes that are reserved.
const ARENA_BYTES_MAX: usize = 1 << 40;
/// The fewest. Otherwise there are no segments.
const ARENA_BYTES_MIN: usize = 1 << 30;

/// The number of parts.
pub(super) const PARTS: usize = 4;

/// The first address, which is stored before the length.
static START: AtomicUsize = AtomicUsize::new(0);
/// The number of bytes, or 0 before the reservation.
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Whether an address is in the arena.
#[inline]
pub(super) fn contains(address: usize) -> bool {
    let len = LEN.load(Ordering::Acquire);
    address.wrapping_sub(START.load(Ordering::Relaxed)) < len
}

/// Returns the part that contains an address of the arena.
pub(super) fn part_of(address: usize) -> usize {
    let len = LEN.load(Ordering::Acquire).max(PARTS);
    (address.wrapping_sub(START.load(Ordering::Relaxed)) / (len / PARTS)).min(PARTS - 1)
}

/// Reserves the arena, and returns the addresses of its parts. It must be called at most once.
///
/// Returns `None` if the address space is too small or limited: a reservation would leave less of
/// the limit to the program.
pub(super) fn reserve_addresses() -> Option<[Range<usize>; PARTS]> {
    if getrlimit(Resource::As).current.is_some() {
        return None;
    }
    let mut len = ARENA_BYTES_MAX;
    let start = loop {
        // SAFETY: the kernel chooses addresses at which nothing is mapped.
        match unsafe { reserve(null_mut(), len, MapFlags::empty()) } {
            Ok(start) => break start,
            Err(_) if len > ARENA_BYTES_MIN => len /= 2,
            Err(_) => return None,
        }
    };
    let first = start.expose_provenance();
    START.store(first, Ordering::Relaxed);
    LEN.store(len, Ordering::Release);
    let part = |part: usize| {
        let start = first + part * (len / PARTS);
        start.next_multiple_of(SEGMENT_UNIT)..(start + len / PARTS) / SEGMENT_UNIT * SEGMENT_UNIT
    };
    Some(std::array::from_fn(part))
}

/// Creates a region in place of addresses of the arena.
///
/// # Safety
/// No other code uses these addresses, which are in whole pages, until the region is dropped.
pub(super) unsafe fn create_region(id: u64, addresses: &Range<usize>) -> io::Result<Region> {
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(addresses.start));
    let start = start.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the arena is reserved, and the caller promises the rest.
    unsafe { Region::create_at(id, start, addresses.len()) }
}

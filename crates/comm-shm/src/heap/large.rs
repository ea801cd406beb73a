//! Allocates and frees blocks in the segments of the process.
//!
//! Each part of the arena has its segments and a lock, which is held only for a few operations on
//! maps. A thread first tries the part of its own, and others if that is locked or full. `GROWTH`
//! is held while a segment is created or unmapped, which takes milliseconds, so that threads that
//! need one at the same time create only one, and so that a fork copies no half-made segment. A
//! thread takes `GROWTH` before the lock of a part, and only a fork takes several of these, in
//! order. Nothing in here logs, because a logger may allocate.
#![expect(unsafe_code, reason = "segments replace reserved addresses")]

use std::alloc::Layout;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::process::{Resource, getrlimit};

use super::arena::PARTS;
use super::available::has_memory_for;
use super::segments::{Block, HeapLocation, HeapSegment, SEGMENT_BYTES_MAX, SegmentTotals, Segments};
use super::{arena, fork};
use crate::regions::next_region_id;

/// The maximum number of segments. A peer maps at most 256 regions.
const SEGMENTS_MAX: usize = 128;
/// The segments take at most this part of the file descriptors that the process may open.
const DESCRIPTORS_DIVISOR: u64 = 4;
/// The number of allocations after a failure for which no segment is created, because each attempt
/// may take long.
const PAUSE: u32 = 64;

/// The segments of each part of the arena.
static SEGMENTS: [Mutex<Segments>; PARTS] = [const { Mutex::new(Segments::new()) }; PARTS];
static GROWTH: Mutex<Growth> = Mutex::new(Growth { is_prepared: None, pause: 0 });
/// The number of blocks for which there was no segment.
static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// The state of the creation of segments.
#[derive(Debug)]
pub(super) struct Growth {
    /// Whether the arena is reserved, once that was tried.
    is_prepared: Option<bool>,
    /// The number of further allocations for which no segment is created.
    pause: u32,
}

/// Takes a lock. Returns `None` in a thread that is forking, which holds it.
fn lock<T>(mutex: &'static Mutex<T>) -> Option<MutexGuard<'static, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) if fork::is_in_handlers() => None,
        Err(TryLockError::WouldBlock) => Some(mutex.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// All locks, in order.
pub(super) type AllLocks = (MutexGuard<'static, Growth>, [MutexGuard<'static, Segments>; PARTS]);

/// Takes all locks, for a fork.
pub(super) fn lock_all() -> Option<AllLocks> {
    let growth = lock(&GROWTH)?;
    let [first, second, third, fourth] = &SEGMENTS;
    Some((growth, [lock(first)?, lock(second)?, lock(third)?, lock(fourth)?]))
}

/// Takes the lock of the part that contains an address.
fn lock_part_of(address: usize) -> Option<MutexGuard<'static, Segments>> {
    lock(&SEGMENTS[arena::part_of(address)])
}

/// The parts, beginning with this thread's.
fn parts() -> impl Iterator<Item = &'static Mutex<Segments>> {
    // SAFETY: this function has no requirements.
    let thread = unsafe { libc::pthread_self() } as usize;
    // The address of a thread's data, whose low bits are those of others, too.
    let own = (thread >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
    (0..PARTS).map(move |part| &SEGMENTS[(own + part) % PARTS])
}

/// Allocates a block. Returns `None` if there is no segment for it.
pub(crate) fn allocate(layout: Layout) -> Option<Block> {
    let in_unlocked = |part: &'static Mutex<Segments>| part.try_lock().ok()?.allocate(layout);
    let block = parts().find_map(in_unlocked).or_else(|| allocate_in_any(layout));
    if block.is_none() {
        FALLBACKS.fetch_add(1, Ordering::Relaxed);
    }
    block
}

/// Allocates a block in any part, also if that is locked, or in a new segment.
#[cold]
fn allocate_in_any(layout: Layout) -> Option<Block> {
    let in_part = |part: &'static Mutex<Segments>| lock(part)?.allocate(layout);
    if let Some(block) = parts().find_map(in_part) {
        return Some(block);
    }
    if !fork::register() {
        return None;
    }
    let mut growth = lock(&GROWTH)?;
    // Another thread may have created a segment.
    if let Some(block) = parts().find_map(in_part) {
        return Some(block);
    }
    if growth.pause > 0 {
        growth.pause -= 1;
        return None;
    }
    let block = growth.create_segment(layout);
    // There may be memory for others if there is none for this many bytes.
    if block.is_none() && layout.size() <= SEGMENT_BYTES_MAX {
        growth.pause = PAUSE;
    }
    block
}

/// Returns the totals of all parts.
fn totals() -> SegmentTotals {
    let mut totals = SegmentTotals::default();
    SEGMENTS.iter().filter_map(lock).for_each(|segments| segments.add_to(&mut totals));
    totals
}

impl Growth {
    /// Allocates a block in a new segment, in the part of this thread.
    fn create_segment(&mut self, layout: Layout) -> Option<Block> {
        if !*self.is_prepared.get_or_insert_with(prepare) {
            return None;
        }
        let totals = totals();
        if totals.segments >= segments_max() {
            return None;
        }
        let part = parts().next()?;
        let addresses = lock(part)?.take_addresses(layout, &totals)?;
        let region = if has_memory_for(addresses.len()) {
            // SAFETY: these addresses were just taken.
            unsafe { arena::create_region(next_region_id(), &addresses) }.ok()
        } else {
            None
        };
        let mut segments = lock(part)?;
        match region {
            Some(region) => segments.add(region, addresses),
            None => segments.add_addresses(addresses),
        }
        segments.allocate(layout)
    }
}

/// Prepares the process for its first segment.
fn prepare() -> bool {
    let Some(parts) = arena::reserve_addresses() else { return false };
    for (addresses, part) in parts.into_iter().zip(&SEGMENTS) {
        lock(part).into_iter().for_each(|mut segments| segments.add_addresses(addresses.clone()));
    }
    true
}

fn segments_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / DESCRIPTORS_DIVISOR).map_or(SEGMENTS_MAX, |max| max.min(SEGMENTS_MAX))
}

/// Whether an address is in a block of the heap.
#[inline]
pub(crate) fn contains(address: usize) -> bool {
    arena::contains(address)
}

/// Frees a block.
pub(crate) fn free(block: usize) {
    // A block that is freed in a handler of a fork is lost.
    let is_idle = lock_part_of(block).is_some_and(|mut segments| segments.free(block));
    if is_idle {
        release_excess();
    }
}

/// Unmaps the segments that are not to be kept.
#[cold]
fn release_excess() {
    let Some(_growth) = lock(&GROWTH) else { return };
    while let Some((part, segment)) = remove_excess() {
        let addresses = segment.unmap();
        lock(part).into_iter().for_each(|mut segments| segments.add_addresses(addresses.clone()));
    }
}

/// Removes a segment that is not to be kept, in any part.
fn remove_excess() -> Option<(&'static Mutex<Segments>, HeapSegment)> {
    let totals = totals();
    SEGMENTS.iter().find_map(|part| Some((part, lock(part)?.remove_excess(&totals)?)))
}

/// Changes the length of a block in place, or returns false.
pub(crate) fn resize(block: usize, size: usize) -> bool {
    lock_part_of(block).is_some_and(|mut segments| segments.resize(block, size))
}

/// The length of a block in whole pages.
pub(crate) fn len_of(block: usize) -> usize {
    lock_part_of(block).and_then(|segments| segments.len_of(block)).unwrap_or(0)
}

/// Returns the segment that contains all of these bytes, if peers can read them in it.
pub(crate) fn find(bytes: Range<usize>) -> Option<HeapLocation> {
    lock_part_of(bytes.start)?.find(bytes)
}

/// Returns the current use of memory.
pub(super) fn usage() -> super::HeapUsage {
    let SegmentTotals { segments, bytes, used, .. } = totals();
    super::HeapUsage {
        segments,
        segment_bytes: bytes,
        used_bytes: used,
        fallbacks: FALLBACKS.load(Ordering::Relaxed),
    }
}

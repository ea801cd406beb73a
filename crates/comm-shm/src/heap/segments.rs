//! The segments of the heap and the blocks in them.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::free_ranges::FreeRanges;
use crate::region::Region;

/// The size of a segment is a multiple of this, which is the size of a huge page.
pub(super) const SEGMENT_UNIT: usize = 2 << 20;
/// The smallest segment.
const SEGMENT_BYTES_MIN: usize = 8 << 20;
/// The largest segment of more than one block.
pub(super) const SEGMENT_BYTES_MAX: usize = 256 << 20;
/// A new segment has at least this share of the bytes of all earlier ones, so that their number
/// grows with the logarithm of the memory.
const GROWTH_DIVISOR: usize = 4;
/// The bytes of segments without blocks that are kept even if no block is in use. To create a
/// segment takes as long as the page faults of private memory.
const IDLE_BYTES_MIN: usize = 128 << 20;

/// The number of times that a segment had no block left, which orders idle segments.
static IDLE_CLOCK: AtomicU64 = AtomicU64::new(0);

fn now_idle() -> u64 {
    IDLE_CLOCK.fetch_add(1, Ordering::Relaxed)
}

/// A block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its address.
    pub(crate) start: usize,
    /// The number of bytes from its start that may be nonzero.
    pub(crate) dirty: usize,
}

/// The memory of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// The file, which peers read. New blocks are allocated in it.
    Shared,
    /// A private copy of the file, after a fork.
    Private,
    /// A private copy of the file of another process, from which this one was forked.
    Inherited,
}

/// A region that holds many blocks.
#[derive(Debug)]
pub(super) struct HeapSegment {
    region: Region,
    /// The addresses with the header page.
    span: Range<usize>,
    backing: Backing,
    /// The bytes of its blocks.
    used: usize,
    /// The address from which on no byte has been part of a block.
    untouched: usize,
    /// The clock when it last had no block left.
    idle_since: u64,
}

impl HeapSegment {
    /// Tells peers that nothing in it is sent any more.
    fn retire(&self) {
        // The header page is shared with the process that was forked from.
        if self.backing != Backing::Inherited {
            self.region.retire();
        }
    }
}

/// A segment that contains some bytes, to be read by peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapLocation {
    /// The id of the region.
    pub(crate) region: u64,
    /// The file of the region, which stays open as long as the bytes are part of a block.
    pub(crate) file: RawFd,
    /// The offset of the bytes after the header page.
    pub(crate) offset: u64,
}

/// The bytes of segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SegmentTotals {
    pub(super) segments: usize,
    /// The bytes of all segments.
    pub(super) bytes: usize,
    /// The bytes of segments in which blocks are allocated.
    pub(super) shared: usize,
    /// The bytes of those without blocks.
    pub(super) idle: usize,
    /// The bytes of blocks.
    pub(super) used: usize,
    /// The clock of the segment that has been without blocks for the longest time.
    oldest_idle: Option<u64>,
}

impl SegmentTotals {
    /// The usual size of the next segment.
    fn next_segment_bytes(&self) -> usize {
        (self.shared / GROWTH_DIVISOR).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    }

    /// Whether a segment is to be released, if it has no blocks. A loop next needs that which was
    /// used last.
    fn is_excess(&self, segment: &HeapSegment) -> bool {
        let is_too_much = self.idle > self.used.max(IDLE_BYTES_MIN);
        segment.backing != Backing::Shared || is_too_much && Some(segment.idle_since) == self.oldest_idle
    }
}

/// The segments of one part of the arena, their blocks, and the addresses for further segments.
#[derive(Debug)]
pub(super) struct Segments {
    by_start: BTreeMap<usize, HeapSegment>,
    /// The ranges without a block in shared segments. Header pages separate those of two segments.
    free: FreeRanges,
    /// The length of each block by its address.
    blocks: BTreeMap<usize, usize>,
    /// The addresses that no segment uses.
    unmapped: FreeRanges,
}

impl Segments {
    pub(super) const fn new() -> Self {
        Self {
            by_start: BTreeMap::new(),
            free: FreeRanges::new(),
            blocks: BTreeMap::new(),
            unmapped: FreeRanges::new(),
        }
    }

    /// Adds the bytes of all segments to the totals.
    pub(super) fn add_to(&self, totals: &mut SegmentTotals) {
        for segment in self.by_start.values() {
            let bytes = segment.span.len();
            totals.segments += 1;
            totals.bytes += bytes;
            totals.used += segment.used;
            totals.shared += if segment.backing == Backing::Shared { bytes } else { 0 };
            if segment.used == 0 {
                totals.idle += bytes;
                let oldest = totals.oldest_idle.unwrap_or(u64::MAX);
                totals.oldest_idle = Some(oldest.min(segment.idle_since));
            }
        }
    }

    /// Adds addresses for segments.
    pub(super) fn add_addresses(&mut self, addresses: Range<usize>) {
        self.unmapped.insert(addresses);
    }

    /// Takes the addresses of a new segment for a block, if there are any.
    pub(super) fn take_addresses(&mut self, layout: Layout, totals: &SegmentTotals) -> Option<Range<usize>> {
        let layout = in_pages(layout)?;
        let beyond_page = layout.align() - rustix::param::page_size();
        let needed = layout.size().checked_add(rustix::param::page_size())?.checked_add(beyond_page)?;
        let len = needed.max(totals.next_segment_bytes()).checked_next_multiple_of(SEGMENT_UNIT)?;
        self.unmapped.take(Layout::from_size_align(len, SEGMENT_UNIT).ok()?)
    }

    /// Adds a segment.
    pub(super) fn add(&mut self, region: Region, span: Range<usize>) {
        let start = region.address();
        self.free.insert(start..start + region.len());
        let backing = Backing::Shared;
        let segment =
            HeapSegment { region, span, backing, used: 0, untouched: start, idle_since: now_idle() };
        self.by_start.insert(segment.span.start, segment);
    }

    fn segment_of(&mut self, address: usize) -> Option<&mut HeapSegment> {
        let (_, segment) = self.by_start.range_mut(..=address).next_back()?;
        segment.span.contains(&address).then_some(segment)
    }

    /// Allocates a block, if there is a free range for it.
    pub(super) fn allocate(&mut self, layout: Layout) -> Option<Block> {
        let taken = self.free.take(in_pages(layout)?)?;
        let segment = self.segment_of(taken.start)?;
        segment.used += taken.len();
        let dirty = segment.untouched.saturating_sub(taken.start).min(taken.len());
        segment.untouched = segment.untouched.max(taken.end);
        self.blocks.insert(taken.start, taken.len());
        Some(Block { start: taken.start, dirty })
    }

    /// The length of a block in whole pages.
    pub(super) fn len_of(&self, block: usize) -> Option<usize> {
        self.blocks.get(&block).copied()
    }

    /// Changes the length of a block without moving it. Returns false if that is not possible.
    pub(super) fn resize(&mut self, block: usize, size: usize) -> bool {
        let Some(len) = self.len_of(block) else { return false };
        let Some(new_len) = size.checked_next_multiple_of(rustix::param::page_size()) else { return false };
        let Some(end) = block.checked_add(new_len) else { return false };
        if new_len > len && !self.free.take_exact(block + len..end) {
            return false;
        }
        let Some(segment) = self.segment_of(block) else { return false };
        segment.used = segment.used - len + new_len;
        segment.untouched = segment.untouched.max(end);
        if new_len < len && segment.backing == Backing::Shared {
            self.free.insert(end..block + len);
        }
        self.blocks.insert(block, new_len);
        true
    }

    /// Frees a block. Returns whether a segment may have to be released.
    pub(super) fn free(&mut self, block: usize) -> bool {
        let Some(len) = self.blocks.remove(&block) else { return false };
        let Some(segment) = self.segment_of(block) else { return false };
        segment.used -= len;
        let is_idle = segment.used == 0;
        if is_idle {
            segment.idle_since = now_idle();
        }
        if segment.backing == Backing::Shared {
            self.free.insert(block..block + len);
        }
        is_idle
    }

    /// Removes a segment that is not to be kept, if there is one. Its addresses stay in use.
    pub(super) fn remove_excess(&mut self, totals: &SegmentTotals) -> Option<HeapSegment> {
        let mut idle = self.by_start.iter().filter(|(_, segment)| segment.used == 0);
        let start = *idle.find(|(_, segment)| totals.is_excess(segment))?.0;
        let segment = self.by_start.remove(&start)?;
        self.free.remove_within(segment.span.clone());
        segment.retire();
        Some(segment)
    }

    /// Makes the blocks private, before a fork. Their segments are no longer found or allocated in.
    /// See the module [`fork`](super::fork).
    pub(super) fn make_private(&mut self) {
        for segment in self.by_start.values_mut() {
            if segment.backing != Backing::Shared || segment.used == 0 {
                continue;
            }
            match segment.region.make_private() {
                Ok(()) => {
                    segment.backing = Backing::Private;
                    self.free.remove_within(segment.span.clone());
                }
                // A child without the memory fails where one that shares it would corrupt this
                // process.
                Err(_) => drop(segment.region.exclude_from_children()),
            }
        }
    }

    /// Takes over the segments in a forked child.
    pub(super) fn inherit(&mut self) {
        let is_kept = |segment: &HeapSegment| segment.used > 0 || segment.backing != Backing::Shared;
        let (kept, dropped) = std::mem::take(&mut self.by_start).into_iter().partition(|(_, s)| is_kept(s));
        self.by_start = kept;
        for segment in self.by_start.values_mut() {
            segment.backing = Backing::Inherited;
        }
        self.free = FreeRanges::new();
        let dropped: BTreeMap<usize, HeapSegment> = dropped;
        dropped.into_values().for_each(|segment| self.unmapped.insert(segment.unmap()));
    }

    /// Returns the segment that contains all of these bytes, if peers can read them in it.
    pub(super) fn find(&mut self, bytes: Range<usize>) -> Option<HeapLocation> {
        let segment = self.segment_of(bytes.start)?;
        let offset = bytes.start.checked_sub(segment.region.address())?;
        let is_readable = segment.backing == Backing::Shared && bytes.end <= segment.span.end;
        is_readable.then(|| HeapLocation {
            region: segment.region.id(),
            file: segment.region.file().as_raw_fd(),
            offset: offset as u64,
        })
    }
}

impl HeapSegment {
    /// Unmaps it, and returns its addresses.
    pub(super) fn unmap(self) -> Range<usize> {
        self.span
    }
}

/// Returns a layout in whole pages. Returns `None` if it is too large.
fn in_pages(layout: Layout) -> Option<Layout> {
    let page = rustix::param::page_size();
    let len = layout.size().checked_next_multiple_of(page)?;
    Layout::from_size_align(len, layout.align().max(page)).ok()
}

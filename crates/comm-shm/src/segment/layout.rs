//! The places of the parts of a segment.

use super::Direction;
use crate::fast_boxes::FastBoxes;
use crate::positions::Control;

/// The positions of both rings are on the first page, also if pages are as small as they can be.
const _: () = assert!(2 * Control::BYTES <= 4096);

/// The offsets of the parts in the mapping: the page of the positions, the boxes of both
/// directions, and both rings, each of them twice in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    boxes: [usize; 2],
    rings: [usize; 2],
    /// The bytes of a ring.
    capacity: usize,
}

impl Layout {
    pub(super) fn new(capacity: usize) -> Self {
        let page = rustix::param::page_size();
        // Whole pages, which are allocated together.
        let boxes_bytes = size_of::<FastBoxes>().next_multiple_of(page);
        let rings = page + 2 * boxes_bytes;
        Self { boxes: [page, page + boxes_bytes], rings: [rings, rings + 2 * capacity], capacity }
    }

    /// The offset of the boxes of a direction.
    #[inline]
    pub(super) const fn boxes_offset(&self, direction: Direction) -> usize {
        self.boxes[direction as usize]
    }

    /// The bytes that the boxes of one direction use.
    pub(super) const fn boxes_bytes(&self) -> usize {
        self.boxes[1] - self.boxes[0]
    }

    /// The offset of the first ring, also in the file.
    pub(super) const fn rings_offset(&self) -> usize {
        self.rings[0]
    }

    /// The offset of a ring.
    #[inline]
    pub(super) const fn ring_offset(&self, direction: Direction) -> usize {
        self.rings[direction as usize]
    }

    /// The size of the file, which contains each ring once.
    pub(super) const fn file_bytes(&self) -> u64 {
        (self.rings[0] + 2 * self.capacity) as u64
    }

    /// The size of the mapping.
    pub(super) const fn mapped_bytes(&self) -> usize {
        self.rings[1] + 2 * self.capacity
    }
}

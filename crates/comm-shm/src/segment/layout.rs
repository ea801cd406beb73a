//! The places of the parts of a segment.

use super::Direction;
use crate::fast_boxes::FastBoxes;
use crate::positions::Control;

/// The positions of both rings are on the first page, also if pages are as small as they can be.
const _: () = assert!(2 * Control::BYTES <= 4096);

/// The bytes of the boxes of one direction: whole pages, which are allocated together.
pub(super) fn boxes_bytes() -> usize {
    size_of::<FastBoxes>().next_multiple_of(rustix::param::page_size())
}

/// The offset of the boxes of a direction: after the page of the positions.
pub(super) fn boxes_offset(direction: Direction) -> usize {
    rustix::param::page_size() + direction as usize * boxes_bytes()
}

/// The offset of the first ring in the file.
pub(super) fn rings_offset() -> usize {
    rustix::param::page_size() + 2 * boxes_bytes()
}

/// The offset of a ring in the mapping, where each ring is mapped twice.
pub(super) fn ring_offset(direction: Direction, capacity: usize) -> usize {
    rings_offset() + direction as usize * 2 * capacity
}

/// The positions, the boxes and two rings.
pub(super) fn file_bytes(capacity: usize) -> u64 {
    (rings_offset() + 2 * capacity) as u64
}

/// The positions, the boxes, and two rings twice.
pub(super) fn mapped_bytes(capacity: usize) -> usize {
    rings_offset() + 4 * capacity
}

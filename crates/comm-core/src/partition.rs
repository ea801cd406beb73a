//! The layout of blocks in memory.

use std::ops::Range;
use std::sync::Arc;

use crate::{Blocks, Place};

/// A division of an array into blocks: first into chunks, usually one per rank, then each chunk
/// into the same number of segments. Block `chunk * segments + segment` is segment `segment` of
/// chunk `chunk`.
///
/// Sizes of blocks differ by at most one element, unless the caller gave the chunks' counts. Blocks
/// are contiguous, so a range of blocks is a range of bytes.
#[derive(Debug, Clone)]
pub struct Partition {
    chunks: Chunks,
    segments: usize,
    element_bytes: usize,
    /// The element at which the array starts, for an array that holds only the blocks from there
    /// on.
    origin: usize,
}

#[derive(Debug, Clone)]
enum Chunks {
    /// `elements = chunks * quotient + remainder`; the first `remainder` chunks have one more
    /// element.
    Even { quotient: usize, remainder: usize, chunks: usize },
    /// The start of each chunk, and the end of the last. These are chunks `first`, `first + step`
    /// and so on; the array holds no others.
    Given { starts: Arc<[usize]>, first: usize, step: usize },
}

impl Partition {
    /// Divides `elements` elements evenly into `chunks` chunks. Both may be 0; zero chunks or
    /// segments count as one.
    #[must_use]
    pub fn even(elements: usize, chunks: usize) -> Self {
        let chunks = chunks.max(1);
        Self::of(Chunks::Even { quotient: elements / chunks, remainder: elements % chunks, chunks })
    }

    /// Divides an array into chunks with these numbers of elements.
    #[must_use]
    pub fn given(counts: &[usize]) -> Self {
        let mut starts = Vec::with_capacity(counts.len() + 1);
        let mut end = 0_usize;
        starts.push(end);
        starts.extend(counts.iter().map(|count| {
            end = end.saturating_add(*count);
            end
        }));
        Self::of(Chunks::Given { starts: starts.into(), first: 0, step: 1 })
    }

    /// Declares the chunks as `first`, `first + step` and so on of the collective's data: an
    /// all-to-all's input is a row of the matrix of all chunks, its output a column. Such an array
    /// holds no other chunks, and with a step above 1 it has no ranges of several blocks.
    #[must_use]
    pub fn every(mut self, step: usize, from: usize) -> Self {
        if let Chunks::Given { first, step: old, .. } = &mut self.chunks {
            (*first, *old) = (from, step.max(1));
        }
        self
    }

    fn of(chunks: Chunks) -> Self {
        Self { chunks, segments: 1, element_bytes: 1, origin: 0 }
    }

    /// Returns the same partition with each chunk cut into this many segments.
    #[must_use]
    pub fn segments(mut self, segments: usize) -> Self {
        self.segments = segments.max(1);
        self
    }

    /// Returns the same partition for elements of this size.
    #[must_use]
    pub fn element_bytes(mut self, bytes: usize) -> Self {
        self.element_bytes = bytes;
        self
    }

    /// Returns the same partition for an array that starts with this chunk: an all-gather's input
    /// holds only the rank's own chunk.
    #[must_use]
    pub fn starting_at(mut self, chunk: usize) -> Self {
        self.origin = self.chunk(chunk).map_or(0, |elements| elements.start);
        self
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        let chunks = match &self.chunks {
            Chunks::Even { chunks, .. } => *chunks,
            Chunks::Given { starts, .. } => starts.len() - 1,
        };
        chunks * self.segments
    }

    /// Returns the size of the largest block in bytes.
    #[must_use]
    pub fn block_bytes_max(&self) -> usize {
        let largest = match &self.chunks {
            Chunks::Even { quotient, remainder, .. } => quotient + usize::from(*remainder > 0),
            Chunks::Given { starts, .. } => {
                starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
            }
        };
        largest.div_ceil(self.segments) * self.element_bytes
    }

    /// Returns the size of a range of blocks in bytes. `None` if the array does not hold them
    /// contiguously.
    #[must_use]
    pub fn size(&self, blocks: Blocks) -> Option<usize> {
        self.elements(blocks).map(|elements| elements.len() * self.element_bytes)
    }

    /// Returns the range in bytes of a range of blocks in the array. `None` if the array does not
    /// hold them contiguously.
    #[must_use]
    pub fn bytes(&self, blocks: Blocks) -> Option<Range<usize>> {
        let elements = self.elements(blocks)?;
        let start = elements.start.checked_sub(self.origin)? * self.element_bytes;
        Some(start..start + elements.len() * self.element_bytes)
    }

    /// Returns the elements of a range of blocks.
    fn elements(&self, blocks: Blocks) -> Option<Range<usize>> {
        let first = self.block(blocks.first)?;
        match blocks.count {
            0 => Some(first.start..first.start),
            1 => Some(first),
            _ if matches!(self.chunks, Chunks::Given { step: 2.., .. }) => None,
            _ => Some(first.start..self.block(blocks.end() - 1)?.end),
        }
    }

    /// Returns the elements of a chunk.
    fn chunk(&self, chunk: usize) -> Option<Range<usize>> {
        match &self.chunks {
            Chunks::Even { quotient, remainder, .. } => {
                let start = chunk * quotient + chunk.min(*remainder);
                Some(start..start + quotient + usize::from(chunk < *remainder))
            }
            Chunks::Given { starts, first, step } => {
                let distance = chunk.checked_sub(*first)?;
                let index = distance.is_multiple_of(*step).then_some(distance / step)?;
                Some(*starts.get(index)?..*starts.get(index + 1)?)
            }
        }
    }

    /// Returns the elements of a block.
    fn block(&self, block: usize) -> Option<Range<usize>> {
        if self.segments == 1 {
            return self.chunk(block);
        }
        let chunk = self.chunk(block / self.segments)?;
        let segment = block % self.segments;
        let (quotient, remainder) = (chunk.len() / self.segments, chunk.len() % self.segments);
        let start = chunk.start + segment * quotient + segment.min(remainder);
        Some(start..start + quotient + usize::from(segment < remainder))
    }
}

/// The layout of the blocks of a collective in all three arrays.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Blocks of the input.
    pub input: Partition,
    /// Blocks of the output.
    pub output: Partition,
    /// Sizes of the blocks that are stored in scratch.
    pub scratch: Partition,
    /// Whether slots of scratch are contiguous, so that a range of blocks can be assembled slot by
    /// slot. All blocks must have the same size.
    pub gapless: bool,
}

impl Layout {
    /// Uses one partition for all three arrays.
    #[must_use]
    pub fn uniform(partition: &Partition) -> Self {
        let [input, output, scratch] = [(); 3].map(|()| partition.clone());
        Self { input, output, scratch, gapless: false }
    }

    /// Returns the distance between two slots of scratch in bytes: the largest block, rounded up to
    /// a cache line unless slots are contiguous.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        let block = self.scratch.block_bytes_max();
        if self.gapless { block } else { block.next_multiple_of(64) }
    }

    /// Returns the range in bytes of blocks in the array of `place`. `None` if that array does not
    /// hold them, or if they are smaller than slots that must be contiguous.
    #[must_use]
    pub fn bytes(&self, place: Place, blocks: Blocks) -> Option<Range<usize>> {
        match place {
            Place::Input => self.input.bytes(blocks),
            Place::Output => self.output.bytes(blocks),
            Place::Scratch { slot } => {
                let (slot_bytes, size) = (self.slot_bytes(), self.scratch.size(blocks)?);
                let fits = !self.gapless || size == blocks.count * slot_bytes;
                fits.then_some(slot * slot_bytes..slot * slot_bytes + size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_array_without_gaps_and_differ_by_one_element() {
        for elements in 0..70 {
            for chunks in 1..9 {
                for segments in 1..6 {
                    let partition = Partition::even(elements, chunks).segments(segments).element_bytes(4);
                    let mut end = 0;
                    let mut sizes = Vec::new();
                    for block in 0..partition.blocks() {
                        let bytes = partition.bytes(Blocks::one(block)).unwrap();
                        assert_eq!(bytes.start, end);
                        end = bytes.end;
                        sizes.push(bytes.len());
                    }
                    assert_eq!(end, elements * 4);
                    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                    assert!(most - least <= 4, "{elements} over {chunks}x{segments}: {sizes:?}");
                    assert_eq!(partition.block_bytes_max(), *most);
                    let all = Blocks { first: 0, count: partition.blocks() };
                    assert_eq!(partition.bytes(all), Some(0..elements * 4));
                }
            }
        }
    }

    #[test]
    fn given_counts_may_be_lopsided_and_empty() {
        let partition = Partition::given(&[0, 7, 0, 1]).segments(2).element_bytes(2);
        assert_eq!(partition.blocks(), 8);
        assert_eq!(partition.bytes(Blocks { first: 2, count: 2 }), Some(0..14));
        assert_eq!(partition.bytes(Blocks { first: 6, count: 2 }), Some(14..16));
        assert_eq!(partition.block_bytes_max(), 8);
    }

    #[test]
    fn strided_partitions_are_rows_and_columns_of_the_matrix_of_chunks() {
        let row = Partition::given(&[3, 0, 2]).every(1, 6).element_bytes(2);
        assert_eq!(row.bytes(Blocks::one(6)), Some(0..6));
        assert_eq!(row.bytes(Blocks { first: 6, count: 3 }), Some(0..10));
        assert_eq!((row.bytes(Blocks::one(5)), row.bytes(Blocks::one(9))), (None, None));
        let column = Partition::given(&[3, 0, 2]).every(3, 1).element_bytes(2);
        assert_eq!(column.bytes(Blocks::one(1)), Some(0..6));
        assert_eq!(column.bytes(Blocks::one(7)), Some(6..10));
        assert_eq!((column.bytes(Blocks::one(2)), column.bytes(Blocks::one(10))), (None, None));
        assert_eq!(column.bytes(Blocks { first: 1, count: 2 }), None);
    }

    #[test]
    fn an_array_may_hold_one_chunk_only() {
        let partition = Partition::even(10, 4).element_bytes(8).starting_at(2);
        assert_eq!(partition.bytes(Blocks::one(2)), Some(0..16));
        assert_eq!(partition.bytes(Blocks::one(1)), None);
    }

    #[test]
    fn slots_without_gaps_make_a_range_of_equal_blocks() {
        let layout = |elements| Layout {
            gapless: true,
            ..Layout::uniform(&Partition::even(elements, 7).element_bytes(2))
        };
        let bytes = |layout: &Layout, slot, first, count| {
            layout.bytes(Place::Scratch { slot }, Blocks { first, count })
        };
        assert_eq!(bytes(&layout(35), 2, 4, 3), Some(20..50));
        assert_eq!(bytes(&layout(35), 3, 5, 1), Some(30..40));
        let uneven = layout(36);
        assert_eq!((bytes(&uneven, 0, 0, 1), bytes(&uneven, 0, 0, 2)), (Some(0..12), None));
    }

    #[test]
    fn a_range_of_blocks_fits_its_slots() {
        let layout = Layout::uniform(&Partition::even(1001, 7).segments(3).element_bytes(8));
        for first in 0..20 {
            let bytes = layout.bytes(Place::Scratch { slot: 5 }, Blocks { first, count: 2 }).unwrap();
            assert_eq!(bytes.start, 5 * layout.slot_bytes());
            assert!(bytes.end <= 7 * layout.slot_bytes());
        }
    }
}

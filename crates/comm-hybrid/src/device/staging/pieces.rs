//! Which elements go through the host in which piece.
//!
//! All ranks cut a call in the same way, whatever memory they have: it follows from lengths that all of them know, from the type, the
//! number of ranks and the size on which they agreed.

use std::ops::Range;

use comm_core::{DType, Invalid, Result, Shares};
use comm_nccl::Part;

/// How many elements of each of so many blocks make a piece of so many bytes; at least one.
pub(super) fn width(piece_bytes: usize, dtype: DType, blocks: usize) -> usize {
    (piece_bytes / dtype.size() / blocks).max(1)
}

/// How many pieces it takes until the longest block is through. A call without elements is one piece too, as ranks wait for each
/// other in it.
pub(super) const fn count(longest: usize, width: usize) -> usize {
    let pieces = longest.div_ceil(width);
    if pieces == 0 { 1 } else { pieces }
}

/// What a piece takes of a block: nothing if the block is shorter.
pub(super) fn clip(len: usize, piece: usize, width: usize) -> Range<usize> {
    let start = piece.saturating_mul(width).min(len);
    start..start.saturating_add(width).min(len)
}

/// What a piece is on this rank.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// What is copied from the device before the call on the host.
    pub(super) down: Vec<Part>,
    /// What is copied to the device after it.
    pub(super) up: Vec<Part>,
    /// How many elements of the pinned buffer the call is about.
    pub(super) len: usize,
    /// How many elements each rank has in it, if they are not all equal.
    pub(super) counts: Vec<usize>,
}

impl Piece {
    /// Elements of a buffer that is one block, copied in one direction or in both.
    pub(super) fn whole(elements: Range<usize>, is_read: bool, is_written: bool) -> Self {
        let len = elements.len();
        let part = Part { elements, at: 0 };
        let parts = |wanted: bool| if wanted { vec![part.clone()] } else { Vec::new() };
        Self { down: parts(is_read), up: parts(is_written), len, counts: Vec::new() }
    }
}

/// The blocks of a buffer for all ranks, one after the other.
#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<Range<usize>>,
}

impl Blocks {
    /// The blocks of a buffer of so many elements, which was checked to have them.
    pub(super) fn new(shares: Shares<'_>, total: usize, ranks: usize) -> Self {
        let mut end = 0;
        let mut next = |len: usize| {
            let start = end;
            end += len;
            start..end
        };
        let blocks = match shares {
            Shares::Equal => (0..ranks).map(|_| next(total / ranks)).collect(),
            Shares::Counts(counts) => counts.iter().map(|count| next(*count)).collect(),
        };
        Self { blocks }
    }

    /// The length of the longest.
    pub(super) fn longest(&self) -> usize {
        self.blocks.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    /// Refuses blocks that are not those of the other buffer, which has as many.
    pub(super) fn check_same(&self, other: &Self) -> Result<()> {
        let unlike = self.blocks.iter().zip(&other.blocks).find(|(ours, theirs)| ours != theirs);
        unlike.map_or(Ok(()), |(ours, theirs)| {
            let (expected, got) = (ours.len(), theirs.len());
            Err(Invalid::Length { what: "what comes from a rank in place", expected, got }.into())
        })
    }

    /// What a piece takes of each, side by side in a pinned buffer from element `at` on.
    pub(super) fn cut(&self, (piece, width): (usize, usize), at: usize) -> Cut {
        let mut end = at;
        let cut = |block: &Range<usize>| {
            let of_block = clip(block.len(), piece, width);
            let slice = Slice { start: block.start, at: end, of_block };
            end += slice.of_block.len();
            slice
        };
        let slices = self.blocks.iter().map(cut).collect();
        Cut { slices, len: end - at }
    }
}

/// The same elements of every block.
#[derive(Debug)]
pub(super) struct Cut {
    slices: Vec<Slice>,
    len: usize,
}

/// Some elements of a block.
#[derive(Debug, Clone)]
struct Slice {
    /// Where the block begins.
    start: usize,
    /// Which elements, counted from there.
    of_block: Range<usize>,
    /// Where they lie in the pinned buffer.
    at: usize,
}

impl Slice {
    fn in_buffer(&self) -> Part {
        let Range { start, end } = self.of_block;
        Part { elements: self.start + start..self.start + end, at: self.at }
    }
}

impl Cut {
    /// How many elements there are in all.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// How many there are of each block.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.slices.iter().map(|slice| slice.of_block.len()).collect()
    }

    /// All of them, where they lie in the buffer.
    pub(super) fn all(&self) -> Vec<Part> {
        self.slices.iter().map(Slice::in_buffer).collect()
    }

    /// Those of one block, where they lie in the buffer.
    pub(super) fn of(&self, rank: usize) -> Vec<Part> {
        self.slices.get(rank).map(Slice::in_buffer).into_iter().collect()
    }

    /// All but those of one block.
    pub(super) fn all_but(&self, rank: usize) -> Vec<Part> {
        let others = self.slices.iter().enumerate().filter(|(of, _)| *of != rank);
        others.map(|(_, slice)| slice.in_buffer()).collect()
    }

    /// Those of one block, where they lie in a buffer that is this block alone.
    pub(super) fn alone(&self, rank: usize) -> Vec<Part> {
        let slice = self.slices.get(rank).cloned();
        slice.map(|Slice { of_block, at, .. }| Part { elements: of_block, at }).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(len: usize, width: usize) -> Vec<usize> {
        (0..count(len, width)).flat_map(|piece| clip(len, piece, width)).collect()
    }

    #[test]
    fn pieces_cover_every_element_once_and_in_order() {
        for width in [1, 2, 7, 100] {
            for len in [0, 1, width - 1, width, width + 1, 3 * width, 3 * width + 1] {
                assert_eq!(covered(len, width), (0..len).collect::<Vec<_>>(), "{len} by {width}");
                assert!((0..count(len, width)).all(|piece| clip(len, piece, width).len() <= width));
            }
        }
        assert_eq!(count(0, 5), 1, "ranks wait for each other also for nothing");
    }

    #[test]
    fn a_piece_has_at_least_an_element_and_no_more_bytes_than_it_may_otherwise() {
        assert_eq!(width(0, DType::F64, 3), 1);
        assert_eq!(width(23, DType::F64, 3), 1);
        assert_eq!(width(48, DType::F64, 3), 2);
        assert_eq!(width(48, DType::U8, 1), 48);
    }

    #[test]
    fn blocks_are_cut_side_by_side() {
        let blocks = Blocks::new(Shares::Counts(&[3, 0, 5]), 8, 3);
        assert_eq!(blocks.longest(), 5);
        let first = blocks.cut((0, 2), 10);
        assert_eq!((first.len(), first.counts()), (4, vec![2, 0, 2]));
        let part = |elements: Range<usize>, at| Part { elements, at };
        assert_eq!(first.all(), [part(0..2, 10), part(3..3, 12), part(3..5, 12)]);
        let second = blocks.cut((1, 2), 0);
        assert_eq!((second.len(), second.counts()), (3, vec![1, 0, 2]));
        assert_eq!(second.of(2), [part(5..7, 1)]);
        assert_eq!(second.alone(2), [part(2..4, 1)]);
        assert_eq!(second.all_but(2), [part(2..3, 0), part(3..3, 1)]);
        assert_eq!(blocks.cut((2, 2), 0).counts(), [0, 0, 1]);
    }

    #[test]
    fn equal_blocks_follow_from_the_length() {
        let blocks = Blocks::new(Shares::Equal, 6, 3);
        assert_eq!((blocks.longest(), blocks.cut((0, 9), 0).len()), (2, 6));
    }
}

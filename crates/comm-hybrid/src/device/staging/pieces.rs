//! The elements that are staged in each piece.
//!
//! All ranks divide a call in the same way: the division depends only on lengths that all of them
//! know, the type, the number of ranks and the agreed size.

use std::ops::Range;

use comm_core::{Access, Collective, Counts, DType, Group, Operands, Result, Shape, Signature};
use comm_nccl::{CopyRegion, Cuda};

use super::collectives::unsupported;

/// The division of a call into pieces on this rank.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) dtype: DType,
    /// The number of elements of each block in a piece.
    width: usize,
    rank: usize,
    parts: Parts,
}

/// The elements of a call that are copied.
#[derive(Debug)]
enum Parts {
    /// One block, which is copied in one direction or in both.
    Whole { len: usize, is_read: bool, is_written: bool },
    /// A block for each rank. A piece is the same part of every block.
    Blocks { blocks: Blocks, download: Region, upload: Region },
    /// Two regions, one sent and one received, which are contiguous in a piece.
    AllToAll { send: Blocks, recv: Blocks },
}

/// Some of the blocks of a buffer.
#[derive(Debug, Clone, Copy)]
enum Region {
    Nothing,
    All,
    /// This rank's block, at its position among the others.
    Own,
    /// This rank's block, in a buffer that contains only this block.
    OwnAlone,
    Others,
}

impl Plan {
    /// Divides a checked call into pieces of at most this many bytes.
    ///
    /// # Errors
    /// [`Invalid::Unsupported`](comm_core::Invalid::Unsupported) for a collective that is not
    /// staged through the host.
    pub(super) fn new(
        signature: &Signature,
        counts: (Counts<'_>, Counts<'_>),
        operands: &Operands<'_, Cuda>,
        group: Group,
        piece_bytes: usize,
    ) -> Result<Self> {
        let (rank, ranks) = (group.rank(), group.size());
        let (sent, received) = lengths(operands);
        let of_root = |len| Blocks::new(counts.0, len, ranks);
        let (is_read, is_written) = (sent.is_some(), received.is_some());
        let (blocks, parts) = match (signature.collective.base(), operands) {
            (Collective::AllReduce | Collective::Reduce | Collective::Broadcast, _) => {
                (1, Parts::Whole { len: signature.count as usize, is_read, is_written })
            }
            (Collective::AllToAll, _) => {
                let send = Blocks::new(counts.0, sent.unwrap_or(0), ranks);
                let recv = Blocks::new(counts.1, received.unwrap_or(0), ranks);
                (2 * ranks, Parts::AllToAll { send, recv })
            }
            (Collective::Gather | Collective::Scatter, _) if signature.root != Some(rank) => {
                (ranks, Parts::Whole { len: signature.count as usize, is_read, is_written })
            }
            (Collective::AllGather | Collective::Gather, operands) => {
                let (download, upload) = match operands {
                    Operands::Single { .. } => (Region::Own, Region::Others),
                    _ => (Region::OwnAlone, Region::All),
                };
                (ranks, Parts::Blocks { blocks: of_root(received.unwrap_or(0)), download, upload })
            }
            (Collective::ReduceScatter | Collective::Scatter, operands) => {
                let (download, upload) = match operands {
                    Operands::Single { .. } => (Region::All, Region::Own),
                    // The root's own block stays in place.
                    Operands::ReadOnly(_) => (Region::Others, Region::Nothing),
                    _ => (Region::All, Region::OwnAlone),
                };
                (ranks, Parts::Blocks { blocks: of_root(sent.unwrap_or(0)), download, upload })
            }
            _ => return Err(unsupported(signature.collective)),
        };
        let dtype = signature.dtype.ok_or_else(|| unsupported(signature.collective))?;
        Ok(Self { dtype, width: width(piece_bytes, dtype, blocks), rank, parts })
    }

    /// Returns the length of the longest block that this rank knows.
    pub(super) fn longest(&self) -> usize {
        match &self.parts {
            Parts::Whole { len, .. } => *len,
            Parts::Blocks { blocks, .. } => blocks.longest(),
            Parts::AllToAll { send, recv } => send.longest().max(recv.longest()),
        }
    }

    /// Returns the number of pieces if the longest block of all ranks has this many elements.
    pub(super) const fn pieces(&self, longest: usize) -> usize {
        count(longest, self.width)
    }

    /// Returns the piece with this number.
    pub(super) fn cut(&self, piece: usize) -> Piece {
        let (place, rank) = ((piece, self.width), self.rank);
        match &self.parts {
            Parts::Whole { len, is_read, is_written } => {
                Piece::whole(clip(*len, piece, self.width), *is_read, *is_written)
            }
            Parts::Blocks { blocks, download, upload } => {
                let cut = blocks.cut(place, 0);
                let (download, upload) = (cut.region(*download, rank), cut.region(*upload, rank));
                Piece { download, upload, len: cut.len(), counts: cut.counts() }
            }
            Parts::AllToAll { send, recv } => {
                let send = send.cut(place, 0);
                let recv = recv.cut(place, send.len());
                let counts = [send.counts(), recv.counts()].concat();
                Piece { download: send.all(), upload: recv.all(), len: send.len() + recv.len(), counts }
            }
        }
    }
}

/// Returns the lengths of the buffers that are read and written.
fn lengths(operands: &Operands<'_, Cuda>) -> (Option<usize>, Option<usize>) {
    match operands {
        Operands::Nothing => (None, None),
        Operands::Single { buffer, access } => {
            let (reads, writes) = (*access != Access::Write, *access != Access::Read);
            (reads.then(|| buffer.len()), writes.then(|| buffer.len()))
        }
        Operands::Pair { send, recv } => (Some(send.len()), Some(recv.len())),
        Operands::ReadOnly(send) => (Some(send.len()), None),
    }
}

/// Returns the number of elements of each block in a piece of at most this many bytes, but at least
/// one.
fn width(piece_bytes: usize, dtype: DType, blocks: usize) -> usize {
    (piece_bytes / dtype.size() / blocks).max(1)
}

/// Returns the number of pieces of the longest block. A call without elements is also one piece,
/// because ranks wait for each other in it.
const fn count(longest: usize, width: usize) -> usize {
    let pieces = longest.div_ceil(width);
    if pieces == 0 { 1 } else { pieces }
}

/// Returns the part of a block in a piece, which is empty if the block is too short.
fn clip(len: usize, piece: usize, width: usize) -> Range<usize> {
    let start = piece.saturating_mul(width).min(len);
    start..start.saturating_add(width).min(len)
}

/// A piece of a call on this rank.
#[derive(Debug, Default)]
pub(super) struct Piece {
    /// The elements that are copied from the device before the call on the host.
    pub(super) download: Vec<CopyRegion>,
    /// The elements that are copied to the device after it.
    pub(super) upload: Vec<CopyRegion>,
    /// The number of elements in the pinned buffer that the call uses.
    pub(super) len: usize,
    /// The number of elements of each rank in the piece; empty if the call has no counts.
    pub(super) counts: Vec<usize>,
}

impl Piece {
    /// Returns the piece of a buffer that is one block, copied in one direction or in both.
    pub(super) fn whole(elements: Range<usize>, is_read: bool, is_written: bool) -> Self {
        let len = elements.len();
        let part = CopyRegion { elements, at: 0 };
        let parts = |wanted: bool| if wanted { vec![part.clone()] } else { Vec::new() };
        Self { download: parts(is_read), upload: parts(is_written), len, counts: Vec::new() }
    }
}

/// The consecutive blocks of a buffer, one for each rank.
#[derive(Debug)]
struct Blocks {
    blocks: Vec<Range<usize>>,
}

impl Blocks {
    /// Returns the blocks of a buffer with this many elements. The counts must have been checked.
    fn new(counts: Counts<'_>, total: usize, ranks: usize) -> Self {
        Self { blocks: counts.blocks(total, ranks).collect() }
    }

    /// Returns the length of the longest block.
    fn longest(&self) -> usize {
        self.blocks.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    /// Returns the parts of all blocks in a piece, which are contiguous in a pinned buffer from
    /// element `at` on.
    fn cut(&self, (piece, width): (usize, usize), at: usize) -> Cut {
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
struct Cut {
    slices: Vec<Slice>,
    len: usize,
}

/// Some elements of a block.
#[derive(Debug, Clone)]
struct Slice {
    /// The index of the block's first element in the buffer.
    start: usize,
    /// The range of elements, relative to the block.
    of_block: Range<usize>,
    /// Their position in the pinned buffer.
    at: usize,
}

impl Slice {
    fn in_buffer(&self) -> CopyRegion {
        let Range { start, end } = self.of_block;
        CopyRegion { elements: self.start + start..self.start + end, at: self.at }
    }
}

impl Cut {
    /// Returns the total number of elements.
    const fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of elements of each block.
    fn counts(&self) -> Vec<usize> {
        self.slices.iter().map(|slice| slice.of_block.len()).collect()
    }

    /// Returns all elements, at their positions in the buffer.
    fn all(&self) -> Vec<CopyRegion> {
        self.slices.iter().map(Slice::in_buffer).collect()
    }

    /// Returns the elements of a region.
    fn region(&self, region: Region, rank: usize) -> Vec<CopyRegion> {
        match region {
            Region::Nothing => Vec::new(),
            Region::All => self.all(),
            Region::Own => self.of(rank),
            Region::OwnAlone => self.alone(rank),
            Region::Others => self.all_but(rank),
        }
    }

    /// Returns the elements of one block, at their position in the buffer.
    fn of(&self, rank: usize) -> Vec<CopyRegion> {
        self.slices.get(rank).map(Slice::in_buffer).into_iter().collect()
    }

    /// Returns the elements of all blocks except one.
    fn all_but(&self, rank: usize) -> Vec<CopyRegion> {
        let others = self.slices.iter().enumerate().filter(|(of, _)| *of != rank);
        others.map(|(_, slice)| slice.in_buffer()).collect()
    }

    /// Returns the elements of one block, at their position in a buffer that contains only this
    /// block.
    fn alone(&self, rank: usize) -> Vec<CopyRegion> {
        let slice = self.slices.get(rank).cloned();
        slice.map(|Slice { of_block, at, .. }| CopyRegion { elements: of_block, at }).into_iter().collect()
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
        assert_eq!(count(0, 5), 1, "ranks also wait for each other if there is no data");
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
        let blocks = Blocks::new(Counts::PerRank(&[3, 0, 5]), 8, 3);
        assert_eq!(blocks.longest(), 5);
        let first = blocks.cut((0, 2), 10);
        assert_eq!((first.len(), first.counts()), (4, vec![2, 0, 2]));
        let part = |elements: Range<usize>, at| CopyRegion { elements, at };
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
        let blocks = Blocks::new(Counts::Equal, 6, 3);
        assert_eq!((blocks.longest(), blocks.cut((0, 9), 0).len()), (2, 6));
    }
}

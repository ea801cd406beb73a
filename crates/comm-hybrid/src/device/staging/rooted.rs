//! Collectives in which the root has a block for every rank, or gets one from it. Only the root knows all lengths.

use std::time::Instant;

use comm_core::{CallOptions, Exchange, Result, Shape, Shares};
use comm_nccl::Cuda;

use super::blocks::{of_piece, received, sent};
use super::pieces::{Blocks, Piece, clip, count};
use super::{Request, StagedCommunicator};

impl StagedCommunicator {
    pub(super) fn stage_gather(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let own = buffers.check_gather(self.group, root, shares)?;
        let (rank, ranks, dtype) = (self.group.rank(), self.group.size(), buffers.dtype());
        let (is_root, width) = (rank == root, self.width(dtype, ranks));
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let blocks =
            is_root.then(|| Ok::<_, comm_core::Error>(Blocks::new(shares, received(&buffers)?, ranks)));
        let blocks = blocks.transpose()?;
        let cut = |piece| {
            let Some(blocks) = &blocks else { return alone(own, (piece, width), (true, false)) };
            let cut = blocks.cut((piece, width), 0);
            let (down, up) =
                if in_place { (cut.of(rank), cut.all_but(rank)) } else { (cut.alone(rank), cut.all()) };
            Piece { down, up, len: cut.len(), counts: cut.counts() }
        };
        let (mut turn, began) = (self.turn()?, Instant::now());
        let staged = self.ends(buffers, (true, is_root)).and_then(|ends| {
            let longest = self.longest(root, shares, (blocks.as_ref(), own), options)?;
            let request = Request::new(ends, dtype, (count(longest, width), longest), options).since(began);
            self.stage(&mut turn, request, cut, |piece, bytes, options| {
                let buffers = if is_root {
                    Exchange::InPlace(bytes)
                } else {
                    Exchange::SendOnly(bytes.into_read_only())
                };
                self.host.0.gather(root, buffers, of_piece(shares, &piece.counts), options)
            })
        });
        self.ended(staged)
    }

    pub(super) fn stage_scatter(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let own = buffers.check_scatter(self.group, root, shares)?;
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let is_root = rank == root;
        let dtype = match &buffers {
            // What another rank than the root gives to send is ignored, its type too.
            Exchange::Separate { recv, .. } if !is_root => recv.dtype(),
            buffers => buffers.dtype(),
        };
        let width = self.width(dtype, ranks);
        // The root keeps its own block where it is, unless it gives a place for it.
        let is_separate = matches!(buffers, Exchange::Separate { .. });
        let blocks = is_root.then(|| Blocks::new(shares, sent(&buffers), ranks));
        let cut = |piece| {
            let Some(blocks) = &blocks else { return alone(own, (piece, width), (false, true)) };
            let cut = blocks.cut((piece, width), 0);
            let (down, up) =
                if is_separate { (cut.all(), cut.alone(rank)) } else { (cut.all_but(rank), Vec::new()) };
            Piece { down, up, len: cut.len(), counts: cut.counts() }
        };
        let (mut turn, began) = (self.turn()?, Instant::now());
        let staged = self.ends(buffers, (is_root, !is_root || is_separate)).and_then(|ends| {
            let longest = self.longest(root, shares, (blocks.as_ref(), own), options)?;
            let request = Request::new(ends, dtype, (count(longest, width), longest), options).since(began);
            self.stage(&mut turn, request, cut, |piece, bytes, options| {
                let buffers = if is_root {
                    Exchange::SendOnly(bytes.into_read_only())
                } else {
                    Exchange::InPlace(bytes)
                };
                self.host.0.scatter(root, buffers, of_piece(shares, &piece.counts), options)
            })
        });
        self.ended(staged)
    }

    /// The length of the longest block, by which all ranks cut: that of this rank if all are equal, or else what the root says.
    fn longest(
        &self,
        root: usize,
        shares: Shares<'_>,
        (blocks, own): (Option<&Blocks>, usize),
        options: &CallOptions,
    ) -> Result<usize> {
        let known = blocks.map_or(own, Blocks::longest);
        match shares {
            Shares::Equal => Ok(known),
            Shares::Counts(_) => self.longest_of(root, known, options),
        }
    }
}

/// A piece of the one block that a rank other than the root has.
fn alone(len: usize, (piece, width): (usize, usize), (is_read, is_written): (bool, bool)) -> Piece {
    Piece::whole(clip(len, piece, width), is_read, is_written)
}

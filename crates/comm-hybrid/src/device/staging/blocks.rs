//! Collectives in which every rank has a block for every other one, or from it. A piece is the same part of every block.

use std::time::Instant;

use comm_core::{
    CallOptions, Error, Exchange, HostViewMut, Invalid, Memory, ReduceOp, Result, Shape, Shares,
};
use comm_nccl::Cuda;

use super::pieces::{Blocks, Piece, count};
use super::{Request, StagedCommunicator};

impl StagedCommunicator {
    pub(super) fn stage_all_gather(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let length = buffers.check_all_gather(self.group, shares)?;
        let (rank, ranks, dtype) = (self.group.rank(), self.group.size(), buffers.dtype());
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let width = self.width(dtype, ranks);
        let blocks = Blocks::new(shares, received(&buffers)?, ranks);
        let cut = |piece| {
            let cut = blocks.cut((piece, width), 0);
            let (down, up) =
                if in_place { (cut.of(rank), cut.all_but(rank)) } else { (cut.alone(rank), cut.all()) };
            Piece { down, up, len: cut.len(), counts: cut.counts() }
        };
        let mut turn = self.turn()?;
        let staged = self.ends(buffers, (true, true)).and_then(|ends| {
            let request = Request::new(ends, dtype, (count(blocks.longest(), width), length), options);
            self.stage(&mut turn, request, cut, |piece, bytes, options| {
                self.host.0.all_gather(Exchange::InPlace(bytes), of_piece(shares, &piece.counts), options)
            })
        });
        self.ended(staged)
    }

    pub(super) fn stage_reduce_scatter(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        let length = buffers.check_reduce_scatter(self.group, shares, op)?;
        let (rank, ranks, dtype) = (self.group.rank(), self.group.size(), buffers.dtype());
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let width = self.width(dtype, ranks);
        let blocks = Blocks::new(shares, sent(&buffers), ranks);
        let cut = |piece| {
            let cut = blocks.cut((piece, width), 0);
            let up = if in_place { cut.of(rank) } else { cut.alone(rank) };
            Piece { down: cut.all(), up, len: cut.len(), counts: cut.counts() }
        };
        let mut turn = self.turn()?;
        let staged = self.ends(buffers, (true, true)).and_then(|ends| {
            let request = Request::new(ends, dtype, (count(blocks.longest(), width), length), options);
            self.stage(&mut turn, request, cut, |piece, bytes, options| {
                let shares = of_piece(shares, &piece.counts);
                self.host.0.reduce_scatter(Exchange::InPlace(bytes), shares, op, options)
            })
        });
        self.ended(staged)
    }

    pub(super) fn stage_all_to_all(
        &self,
        buffers: Exchange<'_, Cuda>,
        (sends, recvs): (Shares<'_>, Shares<'_>),
        options: &CallOptions,
    ) -> Result<()> {
        buffers.check_all_to_all(self.group, sends, recvs)?;
        let (ranks, dtype) = (self.group.size(), buffers.dtype());
        let outgoing = Blocks::new(sends, sent(&buffers), ranks);
        let incoming = Blocks::new(recvs, received(&buffers)?, ranks);
        if matches!(buffers, Exchange::InPlace(_)) {
            outgoing.check_same(&incoming)?;
        }
        // What is sent and what is received lie in a piece side by side.
        let width = self.width(dtype, 2 * ranks);
        let cut = |piece| {
            let out = outgoing.cut((piece, width), 0);
            let back = incoming.cut((piece, width), out.len());
            let counts = [out.counts(), back.counts()].concat();
            Piece { down: out.all(), up: back.all(), len: out.len() + back.len(), counts }
        };
        let (mut turn, began) = (self.turn()?, Instant::now());
        let staged = self.ends(buffers, (true, true)).and_then(|ends| {
            let longest = outgoing.longest().max(incoming.longest());
            let is_known = matches!((sends, recvs), (Shares::Equal, Shares::Equal));
            let longest = if is_known { longest } else { self.longest_of_all(longest, options)? };
            let request = Request::new(ends, dtype, (count(longest, width), longest), options).since(began);
            self.stage(&mut turn, request, cut, |piece, bytes, options| {
                let (out, back) = piece.counts.split_at(ranks);
                let shares = (of_piece(sends, out), of_piece(recvs, back));
                let buffers = halves(bytes, out.iter().sum())?;
                self.host.0.all_to_all(buffers, shares.0, shares.1, options)
            })
        });
        self.ended(staged)
    }
}

/// The shares of a piece, which are equal if those of the whole are.
pub(super) const fn of_piece<'a>(shares: Shares<'_>, counts: &'a [usize]) -> Shares<'a> {
    match shares {
        Shares::Equal => Shares::Equal,
        Shares::Counts(_) => Shares::Counts(counts),
    }
}

/// How many elements the buffer has that is read.
pub(super) fn sent<M: Memory>(buffers: &Exchange<'_, M>) -> usize {
    match buffers {
        Exchange::InPlace(buffer) => buffer.len(),
        Exchange::Separate { send, .. } | Exchange::SendOnly(send) => send.len(),
    }
}

/// How many elements the buffer has that is written.
pub(super) fn received<M: Memory>(buffers: &Exchange<'_, M>) -> Result<usize> {
    match buffers {
        Exchange::InPlace(buffer) => Ok(buffer.len()),
        Exchange::Separate { recv, .. } => Ok(recv.len()),
        Exchange::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
    }
}

/// Elements to be sent, and behind them room for those to be received.
fn halves(bytes: HostViewMut<'_>, sent: usize) -> Result<Exchange<'_>> {
    let dtype = bytes.dtype();
    let (send, recv) = bytes
        .into_bytes()
        .split_at_mut_checked(sent * dtype.size())
        .ok_or_else(|| Error::Internal("a piece is shorter than what it sends".into()))?;
    let send = HostViewMut::from_bytes(send, dtype).map(HostViewMut::into_read_only);
    let halves = send.zip(HostViewMut::from_bytes(recv, dtype));
    let (send, recv) = halves.ok_or_else(|| Error::Internal("a piece is not cut between elements".into()))?;
    Ok(Exchange::Separate { send, recv })
}

//! Converts collectives to calls of NCCL.

use comm_core::{
    Access, Call, CallOptions, Collective, Counts, DType, Error, Invalid, Operands, ReduceOp, ReduceOrder,
    Result, Signature,
};
use nccl_sys::ncclDataType_t;

use super::{Plan, SpanUse, nothing};
use crate::allocation::Allocation;
use crate::dtype;
use crate::error::NCCL;
use crate::handle::{Op, OpKind};
use crate::memory::Cuda;
use crate::usage;
use crate::view::{CudaViewMut, Span};

/// A checked collective: the input for its NCCL calls.
struct Pieces<'a> {
    /// The buffers that this rank reads and writes. In place, they are the same.
    read: Option<Span<'a>>,
    write: Option<Span<'a>>,
    counts: (Counts<'a>, Counts<'a>),
    root: usize,
    op: Option<ReduceOp>,
    /// NCCL's type, and the number of its elements per element of ours.
    dtype: (ncclDataType_t, usize),
}

impl<'a> Plan<'a> {
    /// Adds a barrier. It sums one element per rank, because an empty all-reduce would not wait.
    pub(crate) fn barrier(&mut self, cell: CudaViewMut<'a>, options: &CallOptions) -> Result<()> {
        check_options(Collective::Barrier, None, options)?;
        let buffers = comm_core::Buffers::InPlace(cell);
        self.collective(Call::AllReduce { buffers, op: ReduceOp::Sum }, &CallOptions::default())?;
        self.calls = vec![Signature::new(self.group.id(), Collective::Barrier, NCCL)];
        Ok(())
    }

    /// Adds a collective. An error leaves the plan unchanged.
    pub(crate) fn collective(&mut self, call: Call<'a, Cuda>, options: &CallOptions) -> Result<()> {
        let signature = call.check(self.group, options)?;
        let reduced = signature.op.zip(signature.dtype);
        check_options(signature.collective, reduced, options)?;
        let dtype = match (reduced, signature.dtype) {
            (Some((op, dtype)), _) => (dtype::reduced(dtype, op, self.abilities)?, 1),
            (None, Some(dtype)) => dtype::moved(dtype),
            (None, None) => return Err(unsupported(signature.collective)),
        };
        let counts = call.counts();
        let (read, write) = spans(call.into_operands(self.group.rank()));
        let uses = uses(read, write);
        self.check_devices(&uses)?;
        let (root, op) = (signature.root.unwrap_or(0), signature.op);
        let pieces = Pieces { read, write, counts, root, op, dtype };
        self.emit(signature.collective, &pieces)?;
        self.calls.push(signature.by(NCCL));
        self.uses.extend(uses);
        Ok(())
    }

    fn emit(&mut self, collective: Collective, pieces: &Pieces<'a>) -> Result<()> {
        let Pieces { read, write, root, op, dtype: (dtype, times), .. } = *pieces;
        let whole = Op { dtype, reduction: op, ..nothing() };
        match (collective.base(), read, write) {
            (Collective::AllReduce, Some(read), Some(write)) => {
                let (send, recv) = (read.pointer, write.pointer);
                self.push(Op { kind: OpKind::AllReduce, send, recv, count: read.len, ..whole });
            }
            (Collective::Reduce, Some(read), write) => {
                let (send, recv) = (read.pointer, write.map_or(0, |write| write.pointer));
                self.push(Op { kind: OpKind::Reduce, send, recv, count: read.len, peer: root, ..whole });
            }
            (Collective::Broadcast, Some(buffer), None) | (Collective::Broadcast, None, Some(buffer)) => {
                let (send, recv, count) = (buffer.pointer, buffer.pointer, buffer.len * times);
                self.push(Op { kind: OpKind::Broadcast, send, recv, count, peer: root, ..whole });
            }
            (Collective::AllGather, Some(read), Some(write)) => self.all_gather(pieces, read, write),
            (Collective::ReduceScatter, Some(read), Some(write)) => self.reduce_scatter(pieces, read, write),
            (Collective::AllToAll, Some(read), Some(write)) => self.all_to_all(pieces, read, write)?,
            (Collective::Gather, Some(read), write) => self.gather(pieces, read, write),
            (Collective::Scatter, read, write) => self.scatter(pieces, read, write),
            _ => return Err(unsupported(collective)),
        }
        Ok(())
    }

    fn all_gather(&mut self, pieces: &Pieces<'_>, read: Span<'_>, write: Span<'_>) {
        let (rank, (dtype, times)) = (self.group.rank(), pieces.dtype);
        let blocks: Vec<_> = pieces.counts.1.blocks(write.len, self.group.size()).collect();
        let own = if is_same(&read, &write) { write.at(blocks[rank].start) } else { read.pointer };
        let op = Op { dtype, ..nothing() };
        if let Counts::Equal = pieces.counts.1 {
            let count = blocks[rank].len() * times;
            return self.push(Op { kind: OpKind::AllGather, send: own, recv: write.pointer, count, ..op });
        }
        // Each rank broadcasts its block.
        for (peer, block) in blocks.into_iter().enumerate() {
            let (recv, count) = (write.at(block.start), block.len() * times);
            let send = if peer == rank { own } else { recv };
            self.push(Op { kind: OpKind::Broadcast, send, recv, count, peer, ..op });
        }
    }

    fn reduce_scatter(&mut self, pieces: &Pieces<'_>, read: Span<'_>, write: Span<'_>) {
        let rank = self.group.rank();
        let blocks: Vec<_> = pieces.counts.0.blocks(read.len, self.group.size()).collect();
        let own = if is_same(&read, &write) { write.at(blocks[rank].start) } else { write.pointer };
        let op = Op { dtype: pieces.dtype.0, reduction: pieces.op, ..nothing() };
        if let Counts::Equal = pieces.counts.0 {
            let count = blocks[rank].len();
            return self.push(Op { kind: OpKind::ReduceScatter, send: read.pointer, recv: own, count, ..op });
        }
        // Each rank's block is reduced to it.
        for (peer, block) in blocks.into_iter().enumerate() {
            let (send, recv) = (read.at(block.start), if peer == rank { own } else { 0 });
            self.push(Op { kind: OpKind::Reduce, send, recv, count: block.len(), peer, ..op });
        }
    }

    fn all_to_all(&mut self, pieces: &Pieces<'_>, read: Span<'_>, write: Span<'_>) -> Result<()> {
        let (ranks, size) = (self.group.size(), read.dtype.size());
        // Without a copy, NCCL would overwrite elements before they are sent.
        let is_copied = is_same(&read, &write) && ranks > 1 && read.len > 0;
        let copy = is_copied.then(|| Allocation::new(&self.stream, read.len * size)).transpose()?;
        let from = copy.as_ref().map_or(read.pointer, Allocation::pointer);
        self.copy(read.pointer, from, read.len * size);
        self.scratch.extend(copy);
        let (sends, recvs) = pieces.counts;
        let blocks = sends.blocks(read.len, ranks).zip(recvs.blocks(write.len, ranks));
        for (peer, (send, recv)) in blocks.enumerate() {
            let (from, to) = (from + (send.start * size) as u64, write.at(recv.start));
            if peer == self.group.rank() {
                self.copy(from, to, send.len() * size);
            } else {
                self.send_to(peer, from, (read.dtype, send.len()));
                self.recv_from(peer, to, (read.dtype, recv.len()));
            }
        }
        Ok(())
    }

    fn gather(&mut self, pieces: &Pieces<'_>, read: Span<'_>, write: Option<Span<'_>>) {
        let Some(write) = write else {
            return self.send_to(pieces.root, read.pointer, (read.dtype, read.len));
        };
        for (peer, block) in pieces.counts.1.blocks(write.len, self.group.size()).enumerate() {
            if peer != pieces.root {
                self.recv_from(peer, write.at(block.start), (write.dtype, block.len()));
            } else if !is_same(&read, &write) {
                self.copy(read.pointer, write.at(block.start), block.len() * read.dtype.size());
            }
        }
    }

    fn scatter(&mut self, pieces: &Pieces<'_>, read: Option<Span<'_>>, write: Option<Span<'_>>) {
        let Some(read) = read else {
            let recv = |write: Span<'_>| self.recv_from(pieces.root, write.pointer, (write.dtype, write.len));
            return write.map_or((), recv);
        };
        for (peer, block) in pieces.counts.0.blocks(read.len, self.group.size()).enumerate() {
            if peer != pieces.root {
                self.send_to(peer, read.at(block.start), (read.dtype, block.len()));
            } else if let Some(write) = write {
                self.copy(read.at(block.start), write.pointer, block.len() * read.dtype.size());
            }
        }
    }
}

/// Returns an error for options that NCCL does not support, in a collective with these operands.
pub(crate) fn check_options(
    collective: Collective,
    reduced: Option<(ReduceOp, DType)>,
    options: &CallOptions,
) -> Result<()> {
    if let Some(name) = options.algorithm.as_ref().filter(|name| *name != NCCL) {
        let (name, collective) = (name.clone().into_owned(), collective.name());
        return Err(Invalid::Algorithm { name, collective, known: NCCL.into() }.into());
    }
    let Some((op, dtype)) = reduced else { return Ok(()) };
    if options.order != ReduceOrder::Any {
        let reason = format!("{NCCL} promises no order");
        return Err(Error::setting("order", format!("{:?}", options.order), reason));
    }
    if options.accumulate.dtype(op, dtype) != dtype {
        let reason = format!(
            "{NCCL} keeps partial sums in the type of the elements, here in {dtype}; convert them to f32, or use \
             the staged path"
        );
        return Err(Error::setting("accumulate", format!("{:?}", options.accumulate), reason));
    }
    Ok(())
}

fn unsupported(collective: Collective) -> Error {
    Invalid::Unsupported { backend: NCCL, collective: collective.name() }.into()
}

/// Returns the buffers that are read and written.
fn spans(operands: Operands<'_, Cuda>) -> (Option<Span<'_>>, Option<Span<'_>>) {
    match operands {
        Operands::Nothing => (None, None),
        Operands::Single { buffer, access } => {
            let span = Some(buffer.span);
            match access {
                Access::Read => (span, None),
                Access::Write => (None, span),
                Access::ReadWrite => (span, span),
            }
        }
        Operands::Pair { send, recv } => (Some(send.span), Some(recv.span)),
        Operands::ReadOnly(send) => (Some(send.span), None),
    }
}

fn is_same(read: &Span<'_>, write: &Span<'_>) -> bool {
    read.pointer == write.pointer && read.len == write.len
}

fn uses<'a>(read: Option<Span<'a>>, write: Option<Span<'a>>) -> Vec<SpanUse<'a>> {
    let is_in_place = read.zip(write).is_some_and(|(read, write)| is_same(&read, &write));
    let read = read.filter(|_| !is_in_place).map(|read| (read, usage::Access::Read));
    read.into_iter().chain(write.map(|write| (write, usage::Access::Write))).collect()
}

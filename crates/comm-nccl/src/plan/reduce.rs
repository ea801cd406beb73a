//! Reductions.

use comm_core::{Call, Collective, Exchange, ReduceOp, Result, Shares};

use super::{Description, Part, Plan, blocks, named, nothing, parts, read_and_write};
use crate::dtype;
use crate::error::NCCL;
use crate::handle::{Op, Verb};
use crate::memory::Cuda;
use crate::view::CudaViewMut;

impl<'a> Plan<'a> {
    /// A sum of a cell that every rank has.
    pub(crate) fn barrier(&mut self, cell: CudaViewMut<'a>) -> Result<()> {
        self.all_reduce(Exchange::InPlace(cell), ReduceOp::Sum)?;
        self.calls = vec![Call::new(self.group.id(), Collective::Barrier, NCCL)];
        Ok(())
    }

    pub(crate) fn all_reduce(&mut self, buffers: Exchange<'a, Cuda>, op: ReduceOp) -> Result<()> {
        let count = buffers.check_all_reduce(op)?;
        let number = dtype::reduced(buffers.dtype(), op, self.abilities)?;
        let (read, write) = read_and_write(buffers)?;
        let parts = parts(read, write);
        self.check_devices(&parts)?;
        let collective = Collective::AllReduce;
        self.enter(Description { collective, op: Some(op), dtype: read.dtype, count, root: None }, &parts);
        self.push(Op {
            verb: Verb::AllReduce,
            send: read.pointer,
            recv: write.pointer,
            count,
            dtype: number,
            reduction: Some(op),
            ..nothing()
        });
        Ok(())
    }

    pub(crate) fn reduce(&mut self, root: usize, buffers: Exchange<'a, Cuda>, op: ReduceOp) -> Result<()> {
        let count = buffers.check_reduce(self.group, root, op)?;
        let number = dtype::reduced(buffers.dtype(), op, self.abilities)?;
        let is_root = self.group.rank() == root;
        // Elsewhere than on the root nothing is written, whatever was given.
        let (read, write) = match buffers {
            Exchange::InPlace(buffer) => (buffer.span, is_root.then_some(buffer.span)),
            Exchange::Separate { send, recv } => (send.span, is_root.then_some(recv.span)),
            Exchange::SendOnly(send) => (send.span, None),
        };
        let parts = write.map_or_else(|| vec![Part::Read(read)], |write| parts(read, write));
        self.check_devices(&parts)?;
        let collective = Collective::Reduce;
        self.enter(
            Description { collective, op: Some(op), dtype: read.dtype, count, root: Some(root) },
            &parts,
        );
        self.push(Op {
            verb: Verb::Reduce,
            send: read.pointer,
            recv: write.map_or(0, |write| write.pointer),
            count,
            dtype: number,
            reduction: Some(op),
            peer: root,
        });
        Ok(())
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        buffers: Exchange<'a, Cuda>,
        shares: Shares<'_>,
        op: ReduceOp,
    ) -> Result<()> {
        let count = buffers.check_reduce_scatter(self.group, shares, op)?;
        let dtype = dtype::reduced(buffers.dtype(), op, self.abilities)?;
        let rank = self.group.rank();
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let (read, write) = read_and_write(buffers)?;
        let parts = parts(read, write);
        self.check_devices(&parts)?;
        let collective = named(shares, Collective::ReduceScatter, Collective::ReduceScatterV);
        self.enter(Description { collective, op: Some(op), dtype: read.dtype, count, root: None }, &parts);
        let blocks = blocks(shares, read.len, self.group.size());
        let recv = if in_place { write.at(blocks[rank].start) } else { write.pointer };
        let op = Op { recv, dtype, reduction: Some(op), ..nothing() };
        match shares {
            Shares::Equal => {
                self.push(Op { verb: Verb::ReduceScatter, send: read.pointer, count, ..op });
            }
            // A reduction to each rank of its block.
            Shares::Counts(_) => {
                for (peer, block) in blocks.into_iter().enumerate() {
                    let (send, recv) = (read.at(block.start), if peer == rank { recv } else { 0 });
                    self.push(Op { verb: Verb::Reduce, send, recv, count: block.len(), peer, ..op });
                }
            }
        }
        Ok(())
    }
}

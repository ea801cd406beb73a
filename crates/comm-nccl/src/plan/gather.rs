//! Collectives in which elements are moved as they are, from or to one rank, or to all.

use comm_core::{Collective, Exchange, Result, Shares};

use super::{Description, Part, Plan, blocks, named, nothing, parts, read_and_write};
use crate::dtype;
use crate::handle::{Op, Verb};
use crate::memory::Cuda;
use crate::view::CudaViewMut;

impl<'a> Plan<'a> {
    pub(crate) fn broadcast(&mut self, root: usize, buffer: CudaViewMut<'a>) -> Result<()> {
        self.group.check_root(root)?;
        let span = buffer.span;
        // On the root it is only read, but nothing would be won by telling.
        let parts = [Part::Write(span)];
        self.check_devices(&parts)?;
        let (collective, count) = (Collective::Broadcast, span.len);
        self.enter(Description { collective, op: None, dtype: span.dtype, count, root: Some(root) }, &parts);
        let (dtype, times) = dtype::moved(span.dtype);
        let (send, recv, count) = (span.pointer, span.pointer, count * times);
        self.push(Op { verb: Verb::Broadcast, send, recv, count, dtype, peer: root, ..nothing() });
        Ok(())
    }

    pub(crate) fn all_gather(&mut self, buffers: Exchange<'a, Cuda>, shares: Shares<'_>) -> Result<()> {
        let count = buffers.check_all_gather(self.group, shares)?;
        let rank = self.group.rank();
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let (read, write) = read_and_write(buffers)?;
        let parts = parts(read, write);
        self.check_devices(&parts)?;
        let collective = named(shares, Collective::AllGather, Collective::AllGatherV);
        self.enter(Description { collective, op: None, dtype: read.dtype, count, root: None }, &parts);
        let blocks = blocks(shares, write.len, self.group.size());
        let send = if in_place { write.at(blocks[rank].start) } else { read.pointer };
        let (dtype, times) = dtype::moved(read.dtype);
        let op = Op { send, dtype, ..nothing() };
        match shares {
            Shares::Equal => {
                self.push(Op { verb: Verb::AllGather, recv: write.pointer, count: count * times, ..op });
            }
            // A broadcast from each rank of its block.
            Shares::Counts(_) => {
                for (peer, block) in blocks.into_iter().enumerate() {
                    let recv = write.at(block.start);
                    let send = if peer == rank { send } else { recv };
                    self.push(Op {
                        verb: Verb::Broadcast,
                        send,
                        recv,
                        count: block.len() * times,
                        peer,
                        ..op
                    });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn gather(
        &mut self,
        root: usize,
        buffers: Exchange<'a, Cuda>,
        shares: Shares<'_>,
    ) -> Result<()> {
        let count = buffers.check_gather(self.group, root, shares)?;
        let is_root = self.group.rank() == root;
        let (read, write) = match buffers {
            Exchange::InPlace(buffer) => (buffer.span, is_root.then_some(buffer.span)),
            Exchange::Separate { send, recv } => (send.span, is_root.then_some(recv.span)),
            Exchange::SendOnly(send) => (send.span, None),
        };
        let in_place = write.is_some_and(|write| write.pointer == read.pointer && write.len == read.len);
        let parts = write.map_or_else(|| vec![Part::Read(read)], |write| parts(read, write));
        self.check_devices(&parts)?;
        let collective = named(shares, Collective::Gather, Collective::GatherV);
        self.enter(Description { collective, op: None, dtype: read.dtype, count, root: Some(root) }, &parts);
        let Some(write) = write else {
            self.send_to(root, read.pointer, (read.dtype, read.len));
            return Ok(());
        };
        for (peer, block) in blocks(shares, write.len, self.group.size()).into_iter().enumerate() {
            if peer != root {
                self.recv_from(peer, write.at(block.start), (write.dtype, block.len()));
            } else if !in_place {
                self.copy(read.pointer, write.at(block.start), block.len() * read.dtype.size());
            }
        }
        Ok(())
    }

    pub(crate) fn scatter(
        &mut self,
        root: usize,
        buffers: Exchange<'a, Cuda>,
        shares: Shares<'_>,
    ) -> Result<()> {
        let count = buffers.check_scatter(self.group, root, shares)?;
        let is_root = self.group.rank() == root;
        let dtype = match &buffers {
            // What another rank than the root gives to send is ignored, its type too.
            Exchange::Separate { recv, .. } if !is_root => recv.span.dtype,
            buffers => buffers.dtype(),
        };
        let (read, write) = match buffers {
            // The root keeps its own block where it is.
            Exchange::InPlace(buffer) if is_root => (Some(buffer.span), None),
            Exchange::SendOnly(send) => (Some(send.span), None),
            Exchange::InPlace(buffer) => (None, Some(buffer.span)),
            Exchange::Separate { send, recv } => (is_root.then_some(send.span), Some(recv.span)),
        };
        let parts: Vec<Part<'a>> = read.map(Part::Read).into_iter().chain(write.map(Part::Write)).collect();
        self.check_devices(&parts)?;
        let collective = named(shares, Collective::Scatter, Collective::ScatterV);
        self.enter(Description { collective, op: None, dtype, count, root: Some(root) }, &parts);
        let Some(read) = read else {
            if let Some(write) = write {
                self.recv_from(root, write.pointer, (dtype, write.len));
            }
            return Ok(());
        };
        for (peer, block) in blocks(shares, read.len, self.group.size()).into_iter().enumerate() {
            if peer != root {
                self.send_to(peer, read.at(block.start), (dtype, block.len()));
            } else if let Some(write) = write {
                self.copy(read.at(block.start), write.pointer, block.len() * dtype.size());
            }
        }
        Ok(())
    }
}

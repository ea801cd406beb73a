//! Messages between pairs of ranks.

use comm_core::{Collective, Exchange, Invalid, Result, Shares};

use super::{Description, Part, Plan, Subject, blocks, parts, read_and_write};
use crate::allocation::Allocation;
use crate::memory::Cuda;
use crate::view::{CudaView, CudaViewMut};

impl<'a> Plan<'a> {
    pub(crate) fn all_to_all(
        &mut self,
        buffers: Exchange<'a, Cuda>,
        sends: Shares<'_>,
        recvs: Shares<'_>,
    ) -> Result<()> {
        let count = buffers.check_all_to_all(self.group, sends, recvs)?;
        let in_place = matches!(buffers, Exchange::InPlace(_));
        let (read, write) = read_and_write(buffers)?;
        let parts = parts(read, write);
        self.check_devices(&parts)?;
        let size = read.dtype.size();
        // NCCL would overwrite what is still to be sent.
        let scratch = in_place && self.group.size() > 1 && read.len > 0;
        let scratch = scratch.then(|| Allocation::new(&self.stream, read.len * size)).transpose()?;
        let (equal, counted) = (Collective::AllToAll, Collective::AllToAllV);
        let collective = match (sends, recvs) {
            (Shares::Equal, Shares::Equal) => equal,
            _ => counted,
        };
        self.enter(Description { collective, op: None, dtype: read.dtype, count, root: None }, &parts);
        let from = scratch.as_ref().map_or(read.pointer, Allocation::pointer);
        self.copy(read.pointer, from, read.len * size);
        self.scratch.extend(scratch);
        let ranks = self.group.size();
        let blocks = blocks(sends, read.len, ranks).into_iter().zip(blocks(recvs, write.len, ranks));
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

    pub(crate) fn send(&mut self, to: usize, message: CudaView<'a>) -> Result<()> {
        let parts = [Part::Read(message.span)];
        self.check_peer(to)?;
        self.check_devices(&parts)?;
        self.message.get_or_insert(Subject::Send { to });
        self.use_parts(&parts);
        self.send_to(to, message.span.pointer, (message.span.dtype, message.span.len));
        Ok(())
    }

    pub(crate) fn recv(&mut self, from: usize, buffer: CudaViewMut<'a>) -> Result<()> {
        let parts = [Part::Write(buffer.span)];
        self.check_peer(from)?;
        self.check_devices(&parts)?;
        self.message.get_or_insert(Subject::Recv { from });
        self.use_parts(&parts);
        self.recv_from(from, buffer.span.pointer, (buffer.span.dtype, buffer.span.len));
        Ok(())
    }

    fn check_peer(&self, rank: usize) -> Result<()> {
        let size = self.group.size();
        if rank < size { Ok(()) } else { Err(Invalid::Rank { rank, size }.into()) }
    }
}

//! Messages between pairs of ranks.

use comm_core::{Invalid, Result};

use super::{Pending, Plan};
use crate::usage::Access;
use crate::view::{CudaView, CudaViewMut};

impl<'a> Plan<'a> {
    pub(crate) fn send(&mut self, to: usize, message: CudaView<'a>) -> Result<()> {
        self.check_message(to, &[(message.span, Access::Read)])?;
        self.message.get_or_insert(Pending::Send { to });
        self.uses.push((message.span, Access::Read));
        self.send_to(to, message.span.pointer, (message.span.dtype, message.span.len));
        Ok(())
    }

    pub(crate) fn recv(&mut self, from: usize, buffer: CudaViewMut<'a>) -> Result<()> {
        self.check_message(from, &[(buffer.span, Access::Write)])?;
        self.message.get_or_insert(Pending::Recv { from });
        self.uses.push((buffer.span, Access::Write));
        self.recv_from(from, buffer.span.pointer, (buffer.span.dtype, buffer.span.len));
        Ok(())
    }

    fn check_message(&self, rank: usize, uses: &[super::SpanUse<'a>]) -> Result<()> {
        let size = self.group.size();
        if rank >= size {
            return Err(Invalid::Rank { rank, size }.into());
        }
        self.check_devices(uses)
    }
}

//! Many buffers, one call after the other: each goes through the host, and what is small costs what a call of the host does.

use comm_core::{CallOptions, Communicator, Error, Exchange, ReduceOp, Result, Shape};
use comm_nccl::CudaViewMut;

use super::StagedCommunicator;

impl StagedCommunicator {
    pub(super) fn all_reduce_each(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        buffers.iter().try_for_each(|buffer| op.check(buffer.dtype()))?;
        self.check_places(&buffers)?;
        buffers.into_iter().try_for_each(|buffer| self.all_reduce(Exchange::InPlace(buffer), op, options))
    }

    pub(super) fn broadcast_each(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.group.check_root(root)?;
        self.check_places(&buffers)?;
        buffers.into_iter().try_for_each(|buffer| self.broadcast(root, buffer, options))
    }

    /// Refuses memory of other devices before anything is done: other ranks know of no call that ends in the middle.
    fn check_places(&self, buffers: &[CudaViewMut<'_>]) -> Result<()> {
        let ours = self.device.ordinal();
        let is_elsewhere = |buffer: &&CudaViewMut<'_>| !buffer.is_empty() && buffer.ordinal() != ours;
        buffers.iter().find(is_elsewhere).map_or(Ok(()), |buffer| {
            let reason = format!("the buffer is there, and the communicator on device {ours}");
            Err(Error::setting("device", buffer.ordinal().to_string(), reason))
        })
    }
}

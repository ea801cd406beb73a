//! Many buffers, one call after the other: each is staged through the host, where a small call is
//! cheap.

use comm_core::{Buffers, Call, CallOptions, Communicator, ReduceOp, Reduction, Result, Shape};
use comm_nccl::CudaViewMut;

use super::StagedCommunicator;

impl StagedCommunicator {
    pub(super) fn all_reduce_each(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        // It is the host that computes.
        buffers.iter().try_for_each(|buffer| Reduction::new(op, buffer.dtype()).map(drop))?;
        self.check_places(&buffers)?;
        buffers.into_iter().try_for_each(|buffer| {
            self.run(Call::AllReduce { buffers: Buffers::InPlace(buffer), op }, options)
        })
    }

    pub(super) fn broadcast_each(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.group.check_root(root)?;
        self.check_places(&buffers)?;
        buffers.into_iter().try_for_each(|buffer| self.run(Call::Broadcast { root, buffer }, options))
    }

    /// Returns an error for memory of other devices before any call is made, because the other
    /// ranks would not know of a call that ends early.
    fn check_places(&self, buffers: &[CudaViewMut<'_>]) -> Result<()> {
        let ours = self.device.ordinal();
        let mut there = buffers.iter().filter(|buffer| !buffer.is_empty());
        there.try_for_each(|buffer| buffer.check_device(ours))
    }
}

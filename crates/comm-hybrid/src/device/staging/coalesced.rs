//! The calls that only communicators for devices have. Of many buffers, each is staged through the
//! host in a call of its own, because a small call is cheap there.

use comm_core::{Buffers, Call, CallOptions, Communicator, ReduceOp, Reduction, Result, Shape};
use comm_nccl::{CudaViewMut, Device, DeviceCommunicator, DeviceWork, Stream};

use super::StagedCommunicator;

impl DeviceCommunicator for StagedCommunicator {
    fn device(&self) -> &Device {
        self.device()
    }

    /// The stream for copies to the device. Copies from it have ended when a call returns.
    fn stream(&self) -> &Stream {
        self.streams.up()
    }

    fn work(&self) -> Result<DeviceWork> {
        let _turn = self.turn()?;
        DeviceWork::until_now(self.stream())
    }

    fn synchronize(&self) -> Result<()> {
        self.synchronize()
    }

    fn all_reduce_coalesced(
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

    fn broadcast_coalesced(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.group.check_root(root)?;
        self.check_places(&buffers)?;
        buffers.into_iter().try_for_each(|buffer| self.run(Call::Broadcast { root, buffer }, options))
    }
}

impl StagedCommunicator {
    /// Returns an error for memory of other devices before any call is made, because the other
    /// ranks would not know of a call that ends early.
    fn check_places(&self, buffers: &[CudaViewMut<'_>]) -> Result<()> {
        let ours = self.device.ordinal();
        let mut there = buffers.iter().filter(|buffer| !buffer.is_empty());
        there.try_for_each(|buffer| buffer.check_device(ours))
    }
}

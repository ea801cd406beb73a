//! The calls that only device communicators have. Each of many buffers is staged through the host
//! in a separate call, because small calls are cheap there.

use comm_core::{Buffers, Call, CallOptions, Communicator, ReduceOp, Reduction, Result, Shape};
use comm_nccl::{CudaViewMut, Device, DeviceCommunicator, DeviceWork, Stream};

use super::StagedCommunicator;

impl DeviceCommunicator for StagedCommunicator {
    fn device(&self) -> &Device {
        self.device()
    }

    /// Returns the stream for copies to the device. Copies from the device have ended when a call
    /// returns.
    fn stream(&self) -> &Stream {
        self.streams.upload_stream()
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
        // The host reduces, so its rules for types apply.
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
    /// Returns an error for memory of other devices before any call is made: if a call failed
    /// halfway, the other ranks would still wait for the rest.
    fn check_places(&self, buffers: &[CudaViewMut<'_>]) -> Result<()> {
        let ours = self.device.ordinal();
        let mut there = buffers.iter().filter(|buffer| !buffer.is_empty());
        there.try_for_each(|buffer| buffer.check_device(ours))
    }
}

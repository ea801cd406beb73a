//! The calls that only device communicators have, such as those on many buffers.

use std::sync::Arc;

use comm_core::{Buffers, Call, CallOptions, ReduceOp, Result};

use super::NcclCommunicator;
use crate::health::CallRecord;
use crate::memory::{Cuda, DeviceCommunicator};
use crate::view::CudaViewMut;
use crate::{Device, DeviceWork, Stream};

/// The largest number of NCCL calls in one group. Larger groups save no more time.
const TOGETHER_MAX: usize = 256;

impl DeviceCommunicator for NcclCommunicator {
    fn device(&self) -> &Device {
        self.device()
    }

    fn stream(&self) -> &Stream {
        self.stream()
    }

    fn work(&self) -> Result<DeviceWork> {
        let _turn = self.engine.turn()?;
        let last = CallRecord::new(Arc::clone(&self.engine.health), self.engine.last());
        DeviceWork::until_call(&self.engine.stream, last)
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
        self.together(buffers, options, |buffer| Call::AllReduce { buffers: Buffers::InPlace(buffer), op })
    }

    fn broadcast_coalesced(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.together(buffers, options, |buffer| Call::Broadcast { root, buffer })
    }
}

impl NcclCommunicator {
    /// Makes a call for each buffer, in as few groups as possible. Nothing is enqueued before all
    /// calls have been checked.
    fn together<'a>(
        &self,
        buffers: Vec<CudaViewMut<'a>>,
        options: &CallOptions,
        call: impl Fn(CudaViewMut<'a>) -> Call<'a, Cuda>,
    ) -> Result<()> {
        let turn = self.engine.turn()?;
        let mut plans = Vec::with_capacity(buffers.len().div_ceil(TOGETHER_MAX));
        let mut buffers = buffers.into_iter();
        while buffers.len() > 0 {
            let mut plan = self.engine.plan();
            let mut next = buffers.by_ref().take(TOGETHER_MAX);
            self.checked(next.try_for_each(|buffer| plan.collective(call(buffer), options)))?;
            plans.push(plan);
        }
        plans.into_iter().try_for_each(|plan| self.engine.enqueue(&turn, plan, options).map(drop))
    }
}

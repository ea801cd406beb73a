//! Calls on many buffers.

use comm_core::{Buffers, Call, CallOptions, ReduceOp, Result};

use super::NcclCommunicator;
use crate::memory::Cuda;
use crate::view::CudaViewMut;

/// The largest number of calls of NCCL in one group. More save nothing.
const TOGETHER_MAX: usize = 256;

impl NcclCommunicator {
    /// Reduces each of many buffers; see
    /// [`DeviceCommunicator::all_reduce_coalesced`](crate::DeviceCommunicator::all_reduce_coalesced).
    pub(super) fn all_reduce_each(
        &self,
        buffers: Vec<CudaViewMut<'_>>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        self.together(buffers, options, |buffer| Call::AllReduce { buffers: Buffers::InPlace(buffer), op })
    }

    /// Broadcasts each of many buffers; see
    /// [`DeviceCommunicator::broadcast_coalesced`](crate::DeviceCommunicator::broadcast_coalesced).
    pub(super) fn broadcast_each(
        &self,
        root: usize,
        buffers: Vec<CudaViewMut<'_>>,
        options: &CallOptions,
    ) -> Result<()> {
        self.together(buffers, options, |buffer| Call::Broadcast { root, buffer })
    }

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

//! Gradients as 16-bit floats.

use std::fmt;

use comm_core::{AsView, AsViewMut, Comm, DType, Host, Kernels, ReduceOp};

use super::{CommHook, GradBucket, HookError};
use crate::{BucketPlan, Parameter};

/// Sends gradients of 32 and 64 bits as 16-bit floats: half or a quarter of the bytes.
///
/// Gradients are rounded to nearest, averaged as by [`ReduceOp::Avg`], which does not overflow by
/// summing, and converted back. A gradient that is out of the range of [`CastHook::f16`], above
/// 65504, becomes infinite on all ranks. Gradients of 16 bits are averaged as without a hook.
pub struct CastHook<M: Kernels = Host> {
    dtype: DType,
    /// The converted elements of every bucket.
    buffers: Vec<Option<M::Buffer>>,
}

impl<M: Kernels> CastHook<M> {
    /// Sends `bf16`: the range of `f32`, and 8 bits of precision.
    #[must_use]
    pub const fn bf16() -> Self {
        Self { dtype: DType::BF16, buffers: Vec::new() }
    }

    /// Sends `f16`: magnitudes up to 65504, and 11 bits of precision down to 6.1e-5. Training with
    /// it usually scales the loss, as with [`LossScaler`](crate::LossScaler).
    #[must_use]
    pub const fn f16() -> Self {
        Self { dtype: DType::F16, buffers: Vec::new() }
    }
}

impl<M: Kernels> CommHook<M> for CastHook<M> {
    fn description(&self) -> String {
        self.dtype.to_string()
    }

    fn average(&mut self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<(), HookError> {
        if bucket.dtype()?.size() <= self.dtype.size() {
            return Ok(bucket.all_reduce(comm)?);
        }
        let place = self.buffers.get_mut(bucket.index()).and_then(Option::take);
        let mut buffer = place.map_or_else(|| M::allocate(comm, self.dtype, bucket.len()), Ok)?;
        M::copy(comm, buffer.as_view_mut()?, bucket.as_view()?)?;
        comm.all_reduce(&mut buffer, ReduceOp::Avg)?;
        M::copy(comm, bucket.as_view_mut()?, buffer.as_view()?)?;
        if let Some(place) = self.buffers.get_mut(bucket.index()) {
            *place = Some(buffer);
        }
        Ok(())
    }

    fn set_plan(&mut self, _: &[Parameter], plan: &BucketPlan) {
        self.buffers.clear();
        self.buffers.resize_with(plan.buckets().len(), || None);
    }
}

impl<M: Kernels> fmt::Debug for CastHook<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CastHook").field("dtype", &self.dtype).finish_non_exhaustive()
    }
}

//! Gradients as 16-bit floats.

use std::fmt;
use std::ops::Range;

use comm_core::{AsView, AsViewMut, Comm, DType, Host, Kernels, LinkModel, ReduceOp};

use super::{CommHook, GradBucket, HookError};
use crate::bucket_buffer::Elements;

/// The size in bytes of a chunk that stays in a processor's cache, together with the gradients that
/// it is converted from, until it is converted back.
const CHUNK_BYTES: usize = 256 << 10;

/// Returns the number of bytes to send at a time, the same on every rank. Between hosts each chunk
/// would wait for the latency of the network, so a bucket is sent as a whole.
fn chunk_bytes(links: Option<LinkModel>, ranks: usize) -> usize {
    let is_one_host = links.is_some_and(|links| ranks <= links.ranks_per_host);
    if is_one_host { CHUNK_BYTES } else { usize::MAX }
}

/// Sends gradients of 32 and 64 bits as 16-bit floats: half or a quarter of the bytes.
///
/// Gradients are divided by the smallest power of two that is at least the number of ranks, so that
/// no sum of them overflows, and rounded to nearest. Their sum is converted back and completes the
/// average in `f32`. A gradient that even then exceeds the range of [`CastHook::f16`], which is
/// 65504 times the power of two, becomes infinite on all ranks. Gradients of 16 bits are averaged
/// as if there were no hook.
pub struct CastHook<M: Kernels = Host> {
    dtype: DType,
    /// The memory for converted elements, and their number.
    buffer: Option<(M::Buffer, usize)>,
}

impl<M: Kernels> CastHook<M> {
    /// Sends `bf16`: the range of `f32`, and 8 bits of precision.
    #[must_use]
    pub const fn bf16() -> Self {
        Self { dtype: DType::BF16, buffer: None }
    }

    /// Sends `f16`: magnitudes up to 65504, and 11 bits of precision down to 6.1e-5. Training with
    /// it usually scales the loss, as with [`LossScaler`](crate::LossScaler).
    #[must_use]
    pub const fn f16() -> Self {
        Self { dtype: DType::F16, buffer: None }
    }

    fn average_chunk(
        &mut self,
        comm: &Comm<M>,
        bucket: &mut GradBucket<'_, M>,
        chunk: Range<usize>,
    ) -> Result<(), HookError> {
        let len = chunk.len();
        let allocated = self.buffer.take().filter(|(_, allocated)| *allocated >= len);
        let allocate = || Ok::<_, HookError>((M::allocate(comm, self.dtype, len)?, len));
        let (mut buffer, allocated) = allocated.map_or_else(allocate, Ok)?;
        let mut converted = Elements::new(&mut buffer, 0..len);
        let divisor = comm.size().next_power_of_two() as f32;
        M::convert(comm, converted.as_view_mut()?, bucket.buffer.view(chunk.clone())?, 1.0 / divisor)?;
        comm.all_reduce(&mut converted, ReduceOp::Sum)?;
        let averages = bucket.buffer.elements(chunk).into_view()?;
        M::convert(comm, averages, converted.as_view()?, divisor / comm.size() as f32)?;
        self.buffer = Some((buffer, allocated));
        Ok(())
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
        let (len, chunk) = (bucket.len(), chunk_bytes(comm.links(), comm.size()) / self.dtype.size());
        (0..len).step_by(chunk).try_for_each(|start| {
            self.average_chunk(comm, bucket, start..len.min(start.saturating_add(chunk)))
        })
    }
}

impl<M: Kernels> fmt::Debug for CastHook<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CastHook").field("dtype", &self.dtype).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use comm_core::Link;

    use super::*;

    #[test]
    fn buckets_are_sent_in_chunks_within_a_host() {
        let link = Link { latency: 1e-6, overhead: 1e-7, per_byte: 1e-10 };
        let on_hosts = |hosts: &[u8]| Some(LinkModel::on_hosts(hosts, link, 1e-10, None));
        assert_eq!(chunk_bytes(on_hosts(&[1, 1]), 2), CHUNK_BYTES);
        assert_eq!(chunk_bytes(on_hosts(&[1, 1, 2, 2]), 4), usize::MAX);
        assert_eq!(chunk_bytes(None, 2), usize::MAX);
    }
}

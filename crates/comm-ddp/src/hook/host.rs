//! Copies of buckets in host memory.

use comm_core::{AsView, AsViewMut, Comm, DType, Kernels, ReduceOp, Result, Shape, bytemuck};

use super::GradBucket;

/// The elements of a bucket as `f32` in host memory.
#[derive(Debug)]
pub(super) struct HostElements<M: Kernels> {
    pub(super) elements: Vec<f32>,
    /// The elements as `f32` in the memory of the bucket, if they have another type there.
    converted: Option<M::Buffer>,
}

impl<M: Kernels> HostElements<M> {
    pub(super) const fn new() -> Self {
        Self { elements: Vec::new(), converted: None }
    }

    /// Copies the elements of a bucket.
    pub(super) fn read(&mut self, comm: &Comm<M>, bucket: &GradBucket<'_, M>) -> Result<()> {
        self.elements.resize(bucket.len(), 0.0);
        let bytes = bytemuck::cast_slice_mut(&mut self.elements);
        if bucket.dtype()? == DType::F32 {
            return M::read(comm, bucket.as_view()?, bytes);
        }
        let mut converted = M::allocate(comm, DType::F32, bucket.len())?;
        M::copy(comm, converted.as_view_mut()?, bucket.as_view()?)?;
        M::read(comm, converted.as_view()?, bytes)?;
        self.converted = Some(converted);
        Ok(())
    }

    /// Copies the elements back to the bucket that was read last.
    pub(super) fn write(&mut self, comm: &Comm<M>, bucket: &mut GradBucket<'_, M>) -> Result<()> {
        let bytes = bytemuck::cast_slice(&self.elements);
        let Some(mut converted) = self.converted.take() else {
            return M::write(comm, bucket.as_view_mut()?, bytes);
        };
        M::write(comm, converted.as_view_mut()?, bytes)?;
        M::copy(comm, bucket.as_view_mut()?, converted.as_view()?)
    }
}

/// Averages elements in host memory over all ranks. This is a collective. Keeps the memory that is
/// sent in `kept`, for the next call with as many elements.
pub(super) fn average<M: Kernels>(
    comm: &Comm<M>,
    kept: &mut Option<M::Buffer>,
    elements: &mut [f32],
) -> Result<()> {
    let mut buffer = match kept.take() {
        Some(buffer) if buffer.as_view()?.len() == elements.len() => buffer,
        _ => M::allocate(comm, DType::F32, elements.len())?,
    };
    M::write(comm, buffer.as_view_mut()?, bytemuck::cast_slice(elements))?;
    comm.all_reduce(&mut buffer, ReduceOp::Avg)?;
    M::read(comm, buffer.as_view()?, bytemuck::cast_slice_mut(elements))?;
    *kept = Some(buffer);
    Ok(())
}

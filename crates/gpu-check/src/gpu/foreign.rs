//! Memory and a stream of somebody else, as frameworks have them.

use std::sync::Arc;

use comm_core::{DType, Result};
use comm_nccl::{CudaViewMut, Device, DeviceBuffer, Stream};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};

use super::{copy_at, failed, fill_at};

/// Bytes that a framework allocated, which uses them on its own stream, and nowhere else.
#[derive(Debug)]
pub(crate) struct Foreign {
    memory: CudaSlice<u8>,
    pointer: u64,
    /// Ours of theirs: known by its handle.
    stream: Stream,
    theirs: Arc<CudaStream>,
}

impl Foreign {
    pub(crate) fn zeros(device: &Device, len: usize) -> Result<Self> {
        let theirs = device.context().new_stream().map_err(failed("create a stream"))?;
        let memory = theirs.alloc_zeros::<u8>(len).map_err(failed("allocate memory"))?;
        let pointer = memory.device_ptr(&theirs).0;
        // SAFETY: the stream is kept beside this one, which is dropped first.
        let stream = unsafe { Stream::from_raw(device, theirs.cu_stream().cast()) };
        Ok(Self { memory, pointer, stream, theirs })
    }

    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// All of it, to be used in the order of its stream.
    pub(crate) fn view_mut(&mut self) -> CudaViewMut<'_> {
        // SAFETY: the memory lives as long as this, which waits for the stream when it goes; it is used on that stream alone.
        unsafe { CudaViewMut::from_raw(self.pointer, self.memory.len(), DType::U8, &self.stream) }
    }

    /// Enqueues a write of one value to all bytes.
    pub(crate) fn fill(&mut self, value: u8) -> Result<()> {
        fill_at(self.pointer, self.memory.len(), &self.stream, value)
    }

    /// Enqueues a copy of all bytes on any stream: in no order with what is enqueued on others.
    pub(crate) fn copy_to(&self, to: &mut DeviceBuffer<u8>, stream: &Stream) -> Result<()> {
        let bytes = self.memory.len().min(to.len());
        to.as_mut_slice().write_on(stream, |to| copy_at(to, self.pointer, bytes, stream))
    }

    /// The bytes, when all that was enqueued is done.
    pub(crate) fn to_vec(&self) -> Result<Vec<u8>> {
        let mut host = vec![0; self.memory.len()];
        // SAFETY: both have so many bytes, and the host waits before it looks.
        unsafe { result::memcpy_dtoh_async(&mut host, self.pointer, self.theirs.cu_stream()) }
            .map_err(failed("enqueue a copy"))?;
        self.stream.synchronize()?;
        Ok(host)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Whatever it answers, nothing more can be done.
        drop(self.stream.synchronize());
    }
}

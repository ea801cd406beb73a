//! Memory and a stream of another library, such as a framework.

use std::sync::Arc;

use comm_core::{DType, Result};
use comm_nccl::{CudaViewMut, Device, DeviceBuffer, Stream};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};

use super::{copy_at, failed, fill_at};

/// Device memory of a framework, which uses it on its own stream.
#[derive(Debug)]
pub(crate) struct Foreign {
    memory: CudaSlice<u8>,
    pointer: u64,
    /// Our handle to their stream.
    stream: Stream,
    theirs: Arc<CudaStream>,
}

impl Foreign {
    pub(crate) fn zeros(device: &Device, len: usize) -> Result<Self> {
        let theirs = device.context().new_stream().map_err(failed("create a stream"))?;
        let memory = theirs.alloc_zeros::<u8>(len).map_err(failed("allocate memory"))?;
        let pointer = memory.device_ptr(&theirs).0;
        // SAFETY: `theirs` keeps the stream alive, and is dropped after it.
        let stream = unsafe { Stream::from_raw(device, theirs.cu_stream().cast()) };
        Ok(Self { memory, pointer, stream, theirs })
    }

    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns a view of all bytes, ordered by its stream.
    pub(crate) fn view_mut(&mut self) -> CudaViewMut<'_> {
        // SAFETY: the memory lives as long as `self`, whose drop waits for the stream, and is used
        // only on that stream.
        unsafe { CudaViewMut::from_raw(self.pointer, self.memory.len(), DType::U8, &self.stream) }
    }

    /// Enqueues a write of one value to all bytes.
    pub(crate) fn fill(&mut self, value: u8) -> Result<()> {
        fill_at(self.pointer, self.memory.len(), &self.stream, value)
    }

    /// Enqueues a copy of all bytes on any stream, unordered with other streams.
    pub(crate) fn copy_to(&self, to: &mut DeviceBuffer<u8>, stream: &Stream) -> Result<()> {
        let bytes = self.memory.len().min(to.len());
        to.as_mut_slice().write_on(stream, |to| copy_at(to, self.pointer, bytes, stream))
    }

    /// Waits for all enqueued work, and returns the bytes.
    pub(crate) fn to_vec(&self) -> Result<Vec<u8>> {
        let mut host = vec![0; self.memory.len()];
        // SAFETY: both have this length, and the host waits before it reads.
        unsafe { result::memcpy_dtoh_async(&mut host, self.pointer, self.theirs.cu_stream()) }
            .map_err(failed("enqueue a copy"))?;
        self.stream.synchronize()?;
        Ok(host)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Errors cannot be reported here.
        drop(self.stream.synchronize());
    }
}

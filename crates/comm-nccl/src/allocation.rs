//! Allocations on a device, and copies between them and the host.

#![allow(unsafe_code)]

use comm_core::{Error, Invalid, Result};
use cudarc::driver::result;

use crate::stream::Stream;
use crate::usage::{Access, Usage, Use};
use crate::{Library, error, handle};

const COPY: &str = "enqueue a copy";

/// The allocator that memory comes from, and that frees it.
#[derive(Debug)]
enum Source {
    /// `cuMemAllocAsync`: freed in stream order.
    Stream,
    /// `cuMemAlloc`: freed immediately.
    Device,
    /// `ncclMemAlloc`: freed immediately.
    Nccl(Library),
}

/// Bytes on a device. Dropping it frees them after all work that was enqueued on them. The host
/// does not wait if the device supports stream-ordered allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pointer: u64,
    bytes: usize,
    source: Source,
    /// The stream on which the memory is allocated, copied and freed.
    stream: Stream,
    usage: Usage,
}

impl Allocation {
    /// Allocates `bytes` bytes with unspecified contents.
    pub(crate) fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        let in_order = stream.as_cudarc().context().has_async_alloc();
        Self::from(if in_order { Source::Stream } else { Source::Device }, stream, bytes)
    }

    /// Like [`Allocation::new`], but NCCL allocates the memory.
    pub(crate) fn by_nccl(library: &Library, stream: &Stream, bytes: usize) -> Result<Self> {
        Self::from(Source::Nccl(library.clone()), stream, bytes)
    }

    fn from(source: Source, stream: &Stream, bytes: usize) -> Result<Self> {
        stream.device().bind()?;
        let pointer = if bytes == 0 { 0 } else { source.allocate(stream, bytes)? };
        let allocation = Self { pointer, bytes, source, stream: stream.clone(), usage: Usage::default() };
        // Later uses wait for the allocation.
        allocation.usage.after(Access::Write, Use::until_now(stream)?);
        Ok(allocation)
    }

    pub(crate) const fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Returns whether the memory was allocated in the order of a stream.
    pub(crate) const fn is_stream_ordered(&self) -> bool {
        matches!(self.source, Source::Stream)
    }

    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Sets bytes to zero.
    pub(crate) fn clear(&self, offset: usize, bytes: usize) -> Result<()> {
        self.enqueue(Access::Write, offset, bytes, |at| {
            let stream = self.stream.as_cudarc().cu_stream();
            // SAFETY: the bytes are within the allocation, as `enqueue` has checked, and the
            // allocation is freed after this on the same stream.
            unsafe { result::memset_d8_async(at, 0, bytes, stream) }.map_err(error::cuda(COPY))
        })
    }

    /// Copies from the host, and returns when the copy is done.
    pub(crate) fn upload(&self, offset: usize, from: &[u8]) -> Result<()> {
        let copied = self.enqueue(Access::Write, offset, from.len(), |at| {
            self.stream.settle()?;
            let stream = self.stream.as_cudarc().cu_stream();
            // SAFETY: the bytes are within the allocation, as `enqueue` has checked; the source
            // lives until the wait below is over.
            unsafe { result::memcpy_htod_async(at, from, stream) }.map_err(error::cuda(COPY))
        });
        // Even after an error: the device may still read.
        self.stream.synchronize()?;
        copied
    }

    /// Copies to the host after all earlier work on the memory.
    pub(crate) fn download(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let copied = self.enqueue(Access::Read, offset, to.len(), |at| {
            self.stream.settle()?;
            let stream = self.stream.as_cudarc().cu_stream();
            // SAFETY: the bytes are within the allocation, as `enqueue` has checked; the target
            // lives until the wait below is over.
            unsafe { result::memcpy_dtoh_async(to, at, stream) }.map_err(error::cuda(COPY))
        });
        // Even after an error: the device may still write.
        self.stream.synchronize()?;
        copied?;
        self.usage.check()
    }

    /// Enqueues work on a part of the memory, after the uses that it must wait for.
    fn enqueue(
        &self,
        access: Access,
        offset: usize,
        bytes: usize,
        work: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let expected = self.bytes.saturating_sub(offset);
            return Err(Invalid::Length { what: "the buffer on the device", expected, got: bytes }.into());
        }
        self.stream.device().bind()?;
        if bytes == 0 {
            return Ok(());
        }
        self.usage.before(&self.stream, access)?;
        work(self.pointer + offset as u64)?;
        self.usage.after(access, Use::until_now(&self.stream)?);
        Ok(())
    }

    fn free(&self) -> Result<()> {
        self.stream.device().bind()?;
        // Frees after all earlier uses.
        self.usage.before(&self.stream, Access::Write)?;
        if !self.is_stream_ordered() {
            self.stream.synchronize()?;
        }
        // SAFETY: the memory was allocated by this source on this stream, and is freed once; all
        // uses have ended, or the stream waits for them.
        unsafe { self.source.free(&self.stream, self.pointer) }
    }
}

impl Source {
    /// Allocates `bytes` bytes, at least one, on the current device. The memory may be used by
    /// later work on the stream, and by work that waits for an event recorded after the allocation.
    fn allocate(&self, stream: &Stream, bytes: usize) -> Result<u64> {
        let pointer = match self {
            // SAFETY: the stream is alive; the caller orders the uses of the memory after the
            // allocation.
            Self::Stream => unsafe { result::malloc_async(stream.as_cudarc().cu_stream(), bytes) },
            // SAFETY: the memory is not read before it is written, as every constructor of buffers
            // fills it.
            Self::Device => unsafe { result::malloc_sync(bytes) },
            Self::Nccl(library) => return handle::allocate(library.nccl(), bytes),
        };
        pointer.map_err(error::cuda("allocate memory of the device"))
    }

    /// # Safety
    /// The memory must be allocated by [`Source::allocate`] on this stream, and freed once. All
    /// uses must have ended or, if the memory is freed in stream order, the stream must wait for
    /// them.
    unsafe fn free(&self, stream: &Stream, pointer: u64) -> Result<()> {
        let freed = match self {
            // SAFETY: as the caller promises.
            Self::Stream => unsafe { result::free_async(pointer, stream.as_cudarc().cu_stream()) },
            // SAFETY: as the caller promises.
            Self::Device => unsafe { result::free_sync(pointer) },
            // SAFETY: as the caller promises.
            Self::Nccl(library) => return unsafe { handle::free(library.nccl(), pointer) },
        };
        freed.map_err(error::cuda("free memory of the device"))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.pointer == 0 {
            return;
        }
        if let Err(error) = self.free() {
            report(self.bytes, &error);
        }
    }
}

/// Logs a failure to free. A failed device frees nothing, and the next call on it returns the
/// error.
fn report(bytes: usize, error: &Error) {
    tracing::warn!(bytes, %error, "could not free memory of a device");
}

//! Memory of a device: where it comes from, and copies between it and the host.

#![allow(unsafe_code)]

use comm_core::{Error, Invalid, Result};
use cudarc::driver::result;

use crate::error;
use crate::stream::Stream;
use crate::usage::{Access, Usage, Use};

/// Bytes on a device, which are freed when this is dropped: after all work that was enqueued on them, without waiting on
/// the host where the device allows that.
#[derive(Debug)]
pub(crate) struct Allocation {
    pointer: u64,
    bytes: usize,
    /// On which it was allocated, is copied to and from, and is freed.
    stream: Stream,
    usage: Usage,
}

impl Allocation {
    /// So many bytes, whose contents are unspecified.
    pub(crate) fn new(stream: &Stream, bytes: usize) -> Result<Self> {
        let cuda = stream.as_cudarc();
        stream.device().bind()?;
        let pointer = if bytes == 0 {
            Ok(0)
        } else if cuda.context().has_async_alloc() {
            // SAFETY: the stream lives, and nobody uses the memory before work that comes after it on this stream, or waits
            // for such work by an event.
            unsafe { result::malloc_async(cuda.cu_stream(), bytes) }
        } else {
            // SAFETY: the memory is not read before it is written, as every constructor above this fills it.
            unsafe { result::malloc_sync(bytes) }
        };
        let pointer = pointer.map_err(error::cuda("allocate memory of the device"))?;
        let allocation = Self { pointer, bytes, stream: stream.clone(), usage: Usage::default() };
        // Others may use it once it is there.
        allocation.usage.after(Access::Write, Use::until_now(stream)?);
        Ok(allocation)
    }

    pub(crate) const fn pointer(&self) -> u64 {
        self.pointer
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
            // SAFETY: the bytes are within the allocation, as was checked, and it is freed behind this on the same stream.
            unsafe { result::memset_d8_async(at, 0, bytes, stream) }
        })
    }

    /// Copies from the host. The source may be used again when this returns.
    pub(crate) fn upload(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.enqueue(Access::Write, offset, from.len(), |at| {
            let stream = self.stream.as_cudarc().cu_stream();
            // SAFETY: the bytes are within the allocation, as was checked; the source lives until the wait below is over.
            unsafe { result::memcpy_htod_async(at, from, stream) }
        })?;
        self.stream.synchronize()
    }

    /// Copies to the host, when all work on the memory is done.
    pub(crate) fn download(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let copied = self.enqueue(Access::Read, offset, to.len(), |at| {
            let stream = self.stream.as_cudarc().cu_stream();
            // SAFETY: the bytes are within the allocation, as was checked; the target lives until the wait below is over.
            unsafe { result::memcpy_dtoh_async(to, at, stream) }
        });
        // Even if there was an error: the device may still write.
        self.stream.synchronize()?;
        copied?;
        self.usage.check()
    }

    /// Enqueues work on a part of the memory, behind what it must wait for.
    fn enqueue(
        &self,
        access: Access,
        offset: usize,
        bytes: usize,
        work: impl FnOnce(u64) -> Result<(), cudarc::driver::DriverError>,
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
        work(self.pointer + offset as u64).map_err(error::cuda("enqueue a copy"))?;
        self.usage.after(access, Use::until_now(&self.stream)?);
        Ok(())
    }

    fn free(&self) -> Result<()> {
        self.stream.device().bind()?;
        // Whoever reads or writes it comes before.
        self.usage.before(&self.stream, Access::Write)?;
        let cuda = self.stream.as_cudarc();
        let freed = if cuda.context().has_async_alloc() {
            // SAFETY: it was allocated like this, is freed once, and the stream waits for all uses.
            unsafe { result::free_async(self.pointer, cuda.cu_stream()) }
        } else {
            self.stream.synchronize()?;
            // SAFETY: it was allocated like this, is freed once, and all uses are over.
            unsafe { result::free_sync(self.pointer) }
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

/// A device that has failed frees nothing; whoever uses it next learns why.
fn report(bytes: usize, error: &Error) {
    tracing::warn!(bytes, %error, "could not free memory of a device");
}

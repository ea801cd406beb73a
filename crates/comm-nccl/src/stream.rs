//! Streams and events.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use comm_core::Result;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::pause::Pause;
use crate::{Device, error};

/// A CUDA stream: a queue of work on a device, which runs in order, concurrently with other
/// streams.
///
/// Clones refer to the same stream, which can be used from several threads.
#[derive(Debug, Clone)]
pub struct Stream {
    stream: Arc<CudaStream>,
}

impl Stream {
    /// Returns a stream that was created with cudarc.
    #[must_use]
    pub const fn from_cudarc(stream: Arc<CudaStream>) -> Self {
        Self { stream }
    }

    /// Wraps another library's stream, given its handle, a `CUstream` or a `cudaStream_t`. Dropping
    /// it does not destroy the stream.
    ///
    /// # Safety
    /// The handle must be a stream on this device that outlives everything created with it.
    #[must_use]
    pub unsafe fn from_raw(device: &Device, handle: *mut c_void) -> Self {
        // SAFETY: the caller promises what cudarc requires; events keep the order of work.
        let stream = unsafe { device.context().wrap_borrowed_stream(handle.cast()) };
        Self { stream }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::from_context(Arc::clone(self.stream.context()))
    }

    /// Returns the stream, for calls of cudarc.
    #[must_use]
    pub const fn as_cudarc(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Waits on the host for all work that was enqueued so far.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if any of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(error::cuda("wait for a stream"))
    }

    /// Makes later work on this stream wait for all work that was enqueued on `other` so far. The
    /// host does not wait.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the driver returns an error.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        if self.is(other) { Ok(()) } else { self.wait(&other.record()?) }
    }

    /// Returns the number of the device.
    pub(crate) fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Returns whether both are the same stream.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.stream == other.stream
    }

    /// Records an event after all work that was enqueued so far.
    pub(crate) fn record(&self) -> Result<Event> {
        let event = self.stream.record_event(None).map_err(error::cuda("record an event"))?;
        Ok(Event { event: Arc::new(event) })
    }

    /// Waits on the host for all work that was enqueued so far, by polling.
    ///
    /// This must precede copies of pageable memory: such a copy waits inside the driver for the
    /// earlier work, which may need another thread that calls the driver to abort it.
    pub(crate) fn settle(&self) -> Result<()> {
        let (done, mut pause) = (self.record()?, Pause::default());
        while !done.is_past()? {
            pause.wait();
        }
        Ok(())
    }

    /// Makes later work wait for an event of any stream.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        self.stream.wait(&event.event).map_err(error::cuda("make a stream wait"))
    }
}

/// An event of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    event: Arc<CudaEvent>,
}

impl Event {
    /// Waits on the host for the event.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.event.synchronize().map_err(error::cuda("wait for an event"))
    }

    /// Returns whether the event has occurred.
    pub(crate) fn is_past(&self) -> Result<bool> {
        self.event.try_is_complete().map_err(error::cuda("ask for an event"))
    }
}

//! Streams, and points in them.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use comm_core::Result;
use cudarc::driver::{CudaEvent, CudaStream};

use crate::{Device, error};

/// A queue of work on a device: what is enqueued runs in order, and beside the work of other
/// streams.
///
/// Clones are the same stream; all threads may share it.
#[derive(Debug, Clone)]
pub struct Stream {
    stream: Arc<CudaStream>,
}

impl Stream {
    /// A stream that somebody else made with cudarc.
    #[must_use]
    pub const fn from_cudarc(stream: Arc<CudaStream>) -> Self {
        Self { stream }
    }

    /// A stream of another library, by its handle: a `CUstream` or a `cudaStream_t`. It is not
    /// destroyed with this.
    ///
    /// # Safety
    /// The handle must be that of a stream on this device, which lives as long as anything that was
    /// made with it.
    #[must_use]
    pub unsafe fn from_raw(device: &Device, handle: *mut c_void) -> Self {
        // SAFETY: what the caller promises is what cudarc asks for; the order of work is kept by
        // events.
        let stream = unsafe { device.context().wrap_borrowed_stream(handle.cast()) };
        Self { stream }
    }

    /// The device on which it runs.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::from_context(Arc::clone(self.stream.context()))
    }

    /// The stream, for calls of cudarc.
    #[must_use]
    pub const fn as_cudarc(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Waits on the host until all work that was enqueued so far is done.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if any of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(error::cuda("wait for a stream"))
    }

    /// Lets what is enqueued from now on wait for all that was enqueued on `other` so far. The host
    /// does not wait.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the driver refuses it.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        if self.is(other) { Ok(()) } else { self.wait(&other.record()?) }
    }

    /// The number of the device on which it runs.
    pub(crate) fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Whether both are the same queue.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.stream == other.stream
    }

    /// The point that work has come to when all that was enqueued so far is done.
    pub(crate) fn record(&self) -> Result<Event> {
        let event = self.stream.record_event(None).map_err(error::cuda("record an event"))?;
        Ok(Event { event: Arc::new(event) })
    }

    /// Lets what is enqueued from now on wait for a point of any stream.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        self.stream.wait(&event.event).map_err(error::cuda("make a stream wait"))
    }
}

/// A point in the work of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    event: Arc<CudaEvent>,
}

impl Event {
    /// Waits on the host until the work has come there.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.event.synchronize().map_err(error::cuda("wait for an event"))
    }

    /// Whether the work has come there.
    pub(crate) fn is_past(&self) -> Result<bool> {
        self.event.try_is_complete().map_err(error::cuda("ask for an event"))
    }
}

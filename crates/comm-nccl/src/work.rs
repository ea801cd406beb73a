//! Handles to enqueued work.

use comm_core::Result;

use crate::health::CallRecord;
use crate::stream::{Event, Stream};

/// A handle to all calls of a communicator, or all work of a stream, up to some point.
///
/// Uses of a [`DeviceBuffer`](crate::DeviceBuffer) wait for each other automatically. The handle is
/// for streams that continue after several calls, and for memory of other libraries that is used on
/// several streams.
#[derive(Debug, Clone)]
pub struct DeviceWork {
    stream: Stream,
    done: Event,
    /// The last call, if a failure of its communicator could lose it.
    last: Option<CallRecord>,
}

impl DeviceWork {
    /// Returns a handle to all work that was enqueued on a stream so far.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn until_now(stream: &Stream) -> Result<Self> {
        stream.device().bind()?;
        Ok(Self { stream: stream.clone(), done: stream.record()?, last: None })
    }

    /// Returns a handle to the work up to a call on the stream that may be lost.
    pub(crate) fn until_call(stream: &Stream, last: CallRecord) -> Result<Self> {
        Ok(Self { last: Some(last), ..Self::until_now(stream)? })
    }

    /// Makes later work on `stream` wait for the work. The host does not wait.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the driver returns an error.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        stream.device().bind()?;
        if stream.is(&self.stream) { Ok(()) } else { stream.wait(&self.done) }
    }

    /// Returns whether the work has ended, successfully or not.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device failed.
    pub fn is_done(&self) -> Result<bool> {
        self.stream.device().bind()?;
        self.done.is_past()
    }

    /// Waits on the host until the work has ended. This is at the latest at the deadlines of its
    /// calls, when the communicator aborts them.
    ///
    /// # Errors
    /// [`Error::Poisoned`](comm_core::Error::Poisoned) if a call was lost when its communicator
    /// failed; [`Error::Backend`](comm_core::Error::Backend) if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.device().bind()?;
        self.done.synchronize()?;
        self.last.as_ref().map_or(Ok(()), CallRecord::check)
    }
}

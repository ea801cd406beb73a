//! Handles to what was enqueued.

use comm_core::Result;

use crate::health::Ticket;
use crate::stream::{Event, Stream};

/// All calls that a communicator had enqueued at some point, or all work of a stream: something to
/// wait for.
///
/// Whoever uses [`DeviceBuffer`](crate::DeviceBuffer)s needs none, as they wait for their last use
/// by themselves. It is for streams that go on after several calls at once, and for memory of
/// others that is used on more streams than the one of its view.
#[derive(Debug, Clone)]
pub struct DeviceWork {
    stream: Stream,
    done: Event,
    /// The last of the calls, as far as a communicator may lose some.
    last: Option<Ticket>,
}

impl DeviceWork {
    /// All work that was enqueued on a stream so far.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device fails.
    pub fn until_now(stream: &Stream) -> Result<Self> {
        stream.device().bind()?;
        Ok(Self { stream: stream.clone(), done: stream.record()?, last: None })
    }

    /// The same, up to a call on the stream that may be lost.
    pub(crate) fn until_call(stream: &Stream, last: Ticket) -> Result<Self> {
        Ok(Self { last: Some(last), ..Self::until_now(stream)? })
    }

    /// Lets what is enqueued on `stream` from now on wait for the work. The host does not wait.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the driver refuses it.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        stream.device().bind()?;
        if stream.is(&self.stream) { Ok(()) } else { stream.wait(&self.done) }
    }

    /// Whether the work has ended, well or not.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) if the device failed.
    pub fn is_done(&self) -> Result<bool> {
        self.stream.device().bind()?;
        self.done.is_past()
    }

    /// Waits on the host until the work has ended: no longer than the deadlines of its calls, at
    /// which the communicator ends them.
    ///
    /// # Errors
    /// [`Error::Poisoned`](comm_core::Error::Poisoned) if a call was lost when its communicator
    /// failed; [`Error::Backend`](comm_core::Error::Backend) if the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.device().bind()?;
        self.done.synchronize()?;
        self.last.as_ref().map_or(Ok(()), Ticket::check)
    }
}

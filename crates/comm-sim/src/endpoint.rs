//! The part of a rank's end of a channel that any thread may use to wake or abort it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use comm_core::{AbortHandle, Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// A rank's descriptor to sleep on, and the cause of its abort, if there was one.
#[derive(Debug)]
pub(crate) struct Endpoint {
    event: Arc<OwnedFd>,
    /// Whether others have the same descriptor, which is never readable then.
    is_shared: bool,
    aborted: OnceLock<Error>,
}

impl Endpoint {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { event: Self::new_event()?, is_shared: false, aborted: OnceLock::new() })
    }

    /// Creates an end whose owner does not sleep on the descriptor, so that others can have the
    /// same one.
    pub(crate) const fn sharing(event: Arc<OwnedFd>) -> Self {
        Self { event, is_shared: true, aborted: OnceLock::new() }
    }

    /// Creates a descriptor to sleep on.
    pub(crate) fn new_event() -> Result<Arc<OwnedFd>> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(Arc::new)
            .map_err(|errno| Error::io("create an event descriptor", errno.into()))
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        if !self.is_shared {
            // This fails only if the counter is full, and then the descriptor is already readable.
            let _ = write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable. Check the state after this, never before.
    pub(crate) fn drain(&self) -> Result<()> {
        if self.is_shared {
            return Ok(());
        }
        match read(&self.event, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::io("read an event descriptor", errno.into())),
        }
    }

    /// Returns the cause of the abort as an error, if there was one.
    pub(crate) fn check(&self) -> Result<()> {
        self.aborted.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl AbortHandle for Endpoint {
    fn abort(&self, cause: Error) {
        // Only the first cause is kept.
        let _ = self.aborted.set(cause);
        self.wake();
    }
}

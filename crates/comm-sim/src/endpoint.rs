//! The part of a rank's end of a channel that any thread may use to wake or abort it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use comm_core::{AbortHandle, Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// A rank's descriptor to sleep on, and the cause of its abort, if there was one.
#[derive(Debug)]
pub(crate) struct Endpoint {
    event: OwnedFd,
    aborted: OnceLock<Error>,
}

impl Endpoint {
    pub(crate) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::io("create an event descriptor", errno.into()))?;
        Ok(Self { event, aborted: OnceLock::new() })
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        // This fails only if the counter is full, and then the descriptor is already readable.
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable. Check the state after this, never before.
    pub(crate) fn drain(&self) -> Result<()> {
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

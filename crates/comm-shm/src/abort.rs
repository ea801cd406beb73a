//! How any thread ends all waiting on a transport.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use comm_core::{AbortHandle, Error, Result};

use crate::bell::Bell;

/// The first cause of an abort, and a bell that rings from then on.
#[derive(Debug)]
pub(crate) struct Abort {
    cause: OnceLock<Error>,
    bell: Bell,
}

impl Abort {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { cause: OnceLock::new(), bell: Bell::new()? })
    }

    /// Fails with the cause once there is one.
    pub(crate) fn check(&self) -> Result<()> {
        self.cause.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl AbortHandle for Abort {
    fn abort(&self, cause: Error) {
        if self.cause.set(cause).is_ok() {
            self.bell.ring();
        }
    }
}

//! What one thread rings to wake another one of its process that sleeps on descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use comm_core::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable from when it rings until it is silenced.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|errno| Error::io("create an event descriptor", errno.into()))
    }

    pub(crate) fn ring(&self) {
        // It fails only if the bell has rung 2^64 - 2 times; then it rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        // It fails only if the bell does not ring.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

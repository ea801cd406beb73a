//! What one thread rings to wake another one that sleeps on descriptors.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{AbortHandle, Error, Result};

/// A descriptor that is readable from when it rings until it is silenced. Any thread may do either.
#[derive(Debug)]
pub struct Notify {
    /// Whether a byte is in the pipe, or on its way there, so that it never holds more than one per thread that rings.
    rings: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Notify {
    /// A bell that does not ring.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no descriptors left.
    pub fn new() -> Result<Self> {
        let (reader, writer) = std::io::pipe().map_err(|source| Error::io("create a pipe", source))?;
        Ok(Self { rings: AtomicBool::new(false), reader, writer })
    }

    /// Makes the descriptor readable. Without a system call if it is.
    pub fn notify(&self) {
        if !self.rings.swap(true, Ordering::SeqCst) {
            // It cannot fail: the pipe has room, and this end and the other are open.
            let _ = (&self.writer).write(&[1]);
        }
    }

    /// Makes the descriptor unreadable, until it rings again. What it rang for must be looked at after this, never before.
    pub fn clear(&self) {
        if self.rings.swap(false, Ordering::SeqCst) {
            // Who set the mark has written the byte, or is about to.
            let _ = (&self.reader).read(&mut [0]);
        }
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// The first cause of an abort, and a bell that rings from then on: what a transport's [`AbortHandle`] is made of.
#[derive(Debug)]
pub struct Abort {
    cause: OnceLock<Error>,
    notify: Notify,
}

impl Abort {
    /// No abort yet.
    ///
    /// # Errors
    /// As [`Notify::new`].
    pub fn new() -> Result<Self> {
        Ok(Self { cause: OnceLock::new(), notify: Notify::new()? })
    }

    /// Fails with the cause once there is one.
    ///
    /// # Errors
    /// What was given to [`AbortHandle::abort`] first.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.cause.get() {
            None => Ok(()),
            Some(cause) => Err(cause.clone()),
        }
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notify.as_fd()
    }
}

impl AbortHandle for Abort {
    fn abort(&self, cause: Error) {
        if self.cause.set(cause).is_ok() {
            self.notify.notify();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rang_often_is_silenced_once() {
        let notify = Notify::new().unwrap();
        notify.clear();
        for _ in 0..3 {
            (0..100_000).for_each(|_| notify.notify());
            notify.clear();
            notify.clear();
        }
        notify.notify();
        // The one byte that is left is the one of the last ring.
        drop(notify.writer);
        let mut left = Vec::new();
        (&notify.reader).read_to_end(&mut left).unwrap();
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn threads_that_ring_and_silence_at_once_leave_no_more_than_the_mark_says() {
        let notify = Notify::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..20_000).for_each(|_| notify.notify()));
                scope.spawn(|| (0..20_000).for_each(|_| notify.clear()));
            }
        });
        let rings = notify.rings.load(Ordering::SeqCst);
        drop(notify.writer);
        let mut left = Vec::new();
        (&notify.reader).read_to_end(&mut left).unwrap();
        assert_eq!(left.len(), usize::from(rings));
    }
}

//! Notifications that wake a thread sleeping on descriptors.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{AbortHandle, Error, Result, simulation};

/// A descriptor that is readable from [`Notify::notify`] until [`Notify::clear`]. Any thread may
/// call either.
#[derive(Debug)]
pub struct Notify {
    /// Whether a byte is in the pipe or about to be written. Because of it, the pipe never holds
    /// more than one byte per notifying thread.
    is_set: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Notify {
    /// Creates a descriptor that is not readable.
    ///
    /// # Errors
    /// [`Error::Io`] if the process is out of descriptors.
    pub fn new() -> Result<Self> {
        let (reader, writer) = std::io::pipe().map_err(|source| Error::io("create a pipe", source))?;
        Ok(Self { is_set: AtomicBool::new(false), reader, writer })
    }

    /// Makes the descriptor readable, without a system call if it already is.
    pub fn notify(&self) {
        if !self.is_set.swap(true, Ordering::SeqCst) {
            // This cannot fail: the pipe has space, and both ends are open.
            let _ = (&self.writer).write(&[1]);
            if let Some(system) = simulation::simulated() {
                system.wake();
            }
        }
    }

    /// Makes the descriptor unreadable until the next [`Notify::notify`]. Check the reason for the
    /// notification after this, never before.
    pub fn clear(&self) {
        if self.is_set.swap(false, Ordering::SeqCst) {
            // The thread that set the flag has written the byte, or is about to.
            let _ = (&self.reader).read(&mut [0]);
        }
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// The first cause of an abort, and a descriptor that is readable from then on: transports
/// implement their [`AbortHandle`] with it.
#[derive(Debug)]
pub struct AbortSignal {
    cause: OnceLock<Error>,
    notify: Notify,
}

impl AbortSignal {
    /// Creates a signal that is not set.
    ///
    /// # Errors
    /// Same as [`Notify::new`].
    pub fn new() -> Result<Self> {
        Ok(Self { cause: OnceLock::new(), notify: Notify::new()? })
    }

    /// Returns the cause of the abort as an error, if there was one.
    ///
    /// # Errors
    /// The cause of the first [`AbortHandle::abort`].
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.cause.get() {
            None => Ok(()),
            Some(cause) => Err(cause.clone()),
        }
    }
}

impl AsFd for AbortSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notify.as_fd()
    }
}

impl AbortHandle for AbortSignal {
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
    fn one_clear_suffices_after_many_notifications() {
        let notify = Notify::new().unwrap();
        notify.clear();
        for _ in 0..3 {
            (0..100_000).for_each(|_| notify.notify());
            notify.clear();
            notify.clear();
        }
        notify.notify();
        // The remaining byte is that of the last notification.
        drop(notify.writer);
        let mut left = Vec::new();
        (&notify.reader).read_to_end(&mut left).unwrap();
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn concurrent_notify_and_clear_leave_at_most_the_byte_of_the_mark() {
        let notify = Notify::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..20_000).for_each(|_| notify.notify()));
                scope.spawn(|| (0..20_000).for_each(|_| notify.clear()));
            }
        });
        let is_set = notify.is_set.load(Ordering::SeqCst);
        drop(notify.writer);
        let mut left = Vec::new();
        (&notify.reader).read_to_end(&mut left).unwrap();
        assert_eq!(left.len(), usize::from(is_set));
    }
}

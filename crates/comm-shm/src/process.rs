//! Pidfds, which become readable when the process of a peer exits.
//!
//! A socket shows the exit of a process only once all copies of it are closed, and a forked child
//! holds copies.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::credentials;

/// The watched processes by pid. All channels to a process share one file descriptor.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<HashMap<Pid, Weak<OwnedFd>>>);

impl Processes {
    /// Returns a file descriptor that is readable once the process at the other end of the socket
    /// has exited. Returns `None` if that process is this one or is in another PID namespace, or if
    /// the kernel (before 5.3) or a sandbox does not support pidfds. Then only the socket shows its
    /// exit.
    ///
    /// # Errors
    /// If there are no file descriptors left.
    pub(crate) fn watch(&self, socket: impl AsFd) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(peer) = Pid::from_raw(credentials::process(socket)?).filter(|pid| *pid != getpid()) else {
            return Ok(None);
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = known.get(&peer).and_then(Weak::upgrade) {
            return Ok(Some(descriptor));
        }
        match pidfd_open(peer, PidfdFlags::empty()) {
            Ok(descriptor) => {
                let descriptor = Arc::new(descriptor);
                known.insert(peer, Arc::downgrade(&descriptor));
                Ok(Some(descriptor))
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => Err(errno.into()),
            Err(errno) => {
                tracing::debug!(%errno, ?peer, "cannot watch the process of a peer");
                Ok(None)
            }
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_not_watched() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Processes::default().watch(near).unwrap().is_none());
    }
}

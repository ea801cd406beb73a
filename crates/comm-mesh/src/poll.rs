//! Sleeps until descriptors are ready or a deadline has passed.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use comm_core::simulation;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Sleeps until a descriptor is ready or the deadline has passed; `None` means no deadline. Returns
/// whether one is ready.
///
/// # Errors
/// The error of `poll(2)`.
pub fn wait(descriptors: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<bool> {
    loop {
        let system = simulation::simulated();
        let left = until.map(|until| until.saturating_duration_since(simulation::now()));
        let timeout = if system.is_some() { Some(Timespec::default()) } else { left.and_then(timespec) };
        match rustix::event::poll(descriptors, timeout.as_ref()) {
            Ok(0)
                if let Some(system) = system
                    && left.is_none_or(|left| !left.is_zero()) =>
            {
                system.sleep(until).map_err(io::Error::other)?;
            }
            Ok(0) if left.is_some_and(|left| !left.is_zero()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sleeps until one descriptor is ready for `flags` or the deadline has passed. Returns whether it
/// is ready.
///
/// # Errors
/// As [`wait`].
pub fn wait_for(descriptor: impl AsFd, flags: PollFlags, until: Instant) -> io::Result<bool> {
    wait(&mut [PollFd::from_borrowed_fd(descriptor.as_fd(), flags)], Some(until))
}

/// Returns the instant after a timeout, or 136 years from now for a longer one.
#[must_use]
pub fn deadline_after(timeout: Duration) -> Instant {
    const LATEST: Duration = Duration::from_secs(u32::MAX as u64);
    let now = simulation::now();
    now.checked_add(timeout.min(LATEST)).unwrap_or(now)
}

/// Converts a duration for the kernel. Returns `None`, which waits forever, if it is too long to be
/// represented.
#[must_use]
pub fn timespec(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_at_its_deadline() {
        let began = Instant::now();
        assert!(!wait(&mut [], Some(began + Duration::from_millis(30))).unwrap());
        assert!(began.elapsed() >= Duration::from_millis(30));
    }
}

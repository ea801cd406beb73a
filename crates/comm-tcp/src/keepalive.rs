//! When a host that does not answer is lost.
//!
//! The kernel probes idle connections, and breaks one after [`Keepalive::probes`] unanswered
//! probes. While bytes are unacknowledged it sends no probes, but retransmits the bytes for a
//! quarter of an hour; that case is detected here. `TCP_USER_TIMEOUT` would shorten it, but would
//! also break the connection of a live process that does not read (a busy or stopped one), and
//! count from the first byte, not from the last answer.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use comm_mesh::timespec;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use rustix::time::{timerfd_create, timerfd_settime};

use crate::tcp_info::TcpInfo;

/// When a host that does not answer is lost.
///
/// The kernel sends probes at the ends of equal intervals of whole seconds after the last answer.
/// The connection breaks an interval after the last probe. The host may have stopped answering at
/// any time in the first interval, so it has then not answered for at least the timeout, and at
/// most an interval longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keepalive {
    pub(crate) timeout: Duration,
    pub(crate) interval: Duration,
    pub(crate) probes: u32,
}

impl Keepalive {
    /// Returns the times for a timeout, which is rounded up to whole seconds.
    pub(crate) const fn new(timeout: Duration) -> Self {
        let seconds = if timeout.subsec_nanos() == 0 { timeout.as_secs() } else { timeout.as_secs() + 1 };
        let seconds = if seconds == 0 { 1 } else { seconds };
        let interval = if seconds < 16 { 1 } else { seconds / 8 };
        // At most 15.
        let probes = seconds.div_ceil(interval) as u32;
        Self { timeout, interval: Duration::from_secs(interval), probes }
    }

    /// The time after the last answer at which the kernel breaks the connection.
    pub(crate) const fn silence_max(&self) -> Duration {
        self.interval.saturating_mul(self.probes + 1)
    }

    /// Whether a host has left bytes or probes unanswered for too long.
    pub(crate) fn is_lost(&self, info: &TcpInfo) -> bool {
        info.has_retransmitted() && info.since_answer() >= self.silence_max()
    }
}

/// A timer that wakes a waiting rank to look for hosts that do not answer.
#[derive(Debug)]
pub(crate) struct CheckTimer(OwnedFd);

impl CheckTimer {
    /// Starts a timer that expires twice in each interval between probes.
    pub(crate) fn start(keepalive: Keepalive) -> rustix::io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let interval = timespec(keepalive.interval / 2).ok_or(Errno::INVAL)?;
        let times = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(Self(timer))
    }

    /// Waits for the next expiry.
    pub(crate) fn clear(&self) {
        // It fails only if the timer has not expired.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for CheckTimer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn keepalive(seconds: u64) -> Keepalive {
        Keepalive::new(Duration::from_secs(seconds))
    }

    #[test]
    fn a_host_is_lost_between_the_timeout_and_an_interval_later() {
        for seconds in 1..=3600 {
            let Keepalive { timeout, interval, probes } = keepalive(seconds);
            // It stops answering at any time before the first probe.
            let (first, last) = (interval * probes, keepalive(seconds).silence_max());
            assert!(first >= timeout && last <= timeout + 2 * interval, "{seconds}");
            assert!(interval <= Duration::from_secs(1).max(timeout / 8) && probes <= 15, "{seconds}");
        }
        assert_eq!(keepalive(2).silence_max(), Duration::from_secs(3));
    }

    #[test]
    fn a_fraction_of_a_second_is_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2)] {
            let rounded = Keepalive::new(Duration::from_millis(millis));
            assert_eq!(rounded.silence_max(), keepalive(seconds).silence_max());
        }
    }
}

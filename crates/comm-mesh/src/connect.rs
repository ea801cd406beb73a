//! The parts of a transport that connect to peers and detect whether they are alive.

use std::time::{Duration, Instant};

use comm_core::{Error, Result};
use rustix::event::PollFd;

/// Identifies the connection of a channel to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    /// The peer's rank on the channel, which errors name.
    pub rank: usize,
    /// The peer's rank in the world, which identifies its process.
    pub world_rank: usize,
}

/// An outgoing connection, from the first attempt until the peer has accepted it.
pub trait Connect {
    /// An established connection.
    type Connection;

    /// Makes progress without blocking. Returns the connection once the peer has accepted it, after
    /// which this is not called again.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if the peer has exited, [`Error::Handshake`] if it rejects this rank.
    fn advance(&mut self, now: Instant) -> Result<Option<Self::Connection>>;

    /// The descriptor that becomes ready when [`Connect::advance`] can make progress.
    fn poll_fd(&self) -> Option<PollFd<'_>>;

    /// The time of the next attempt, if this is waiting for it.
    fn next_attempt(&self) -> Option<Instant>;

    /// The error that describes why there is no connection at the deadline, if it is more
    /// specific than a timeout.
    fn timeout(&self) -> Option<Error> {
        None
    }
}

/// Detects the exit of peers from which a channel expects connections.
pub trait LivenessProbe {
    /// Checks the peers of the connections that are still expected, in ascending order, without
    /// blocking.
    ///
    /// # Errors
    /// [`Error::PeerLost`] for a peer that has exited.
    fn check(&mut self, now: Instant, expected: &[ConnId]) -> Result<()>;

    /// The descriptors that become ready when [`LivenessProbe::check`] may find something new.
    fn poll_fds(&self) -> Vec<PollFd<'_>>;

    /// The time at which a check is due even if no descriptor becomes ready.
    fn next_attempt(&self) -> Option<Instant>;
}

/// Delays between attempts, each twice as long as the one before, up to a limit.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Creates delays that begin with `min` and grow up to `max`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { next: min, max }
    }

    /// Returns the next delay.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(10));
        let delays = [(); 5].map(|()| backoff.next_delay().as_millis());
        assert_eq!(delays, [2, 4, 8, 10, 10]);
    }
}

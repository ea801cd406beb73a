//! Finds out whether a rank that is to dial us is still there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::dial::{Dial, Dialed, REFUSALS_MAX};
use crate::socket::Options;

const FIRST_AFTER: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Connects to a rank now and then, and hangs up: who lives listens. The pauses double, so that a rank which is only
/// late is not flooded, and a death is noticed at the latest when the wait is twice as long as the rank lived into it.
#[derive(Debug)]
pub(crate) struct Probe {
    address: SocketAddr,
    options: Options,
    /// The question under way.
    dial: Option<Dial>,
    due: Instant,
    interval: Duration,
}

impl Probe {
    /// A probe of a rank that is awaited from now on.
    pub(crate) fn new(address: SocketAddr, options: Options, now: Instant) -> Self {
        Self { address, options, dial: None, due: now + FIRST_AFTER, interval: FIRST_AFTER }
    }

    /// Goes on without blocking. Returns the attempts that found nobody, once they leave no doubt.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<&Dial> {
        if self.dial.is_none() && now < self.due {
            return None;
        }
        let dial = self.dial.get_or_insert_with(|| Dial::bare(self.address, self.options.clone()));
        if !matches!(dial.advance(now), Dialed::Pending) {
            self.dial = None;
            self.due = now + self.interval;
            self.interval = (self.interval * 2).min(INTERVAL_MAX);
        }
        self.dial.as_ref().filter(|dial| dial.refusals() >= REFUSALS_MAX)
    }

    /// What to wait for, unless it waits for [`Probe::next_attempt`].
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.dial.as_ref().and_then(Dial::poll_fd)
    }

    /// When it goes on although nobody moves.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        self.dial.as_ref().map_or(Some(self.due), Dial::next_attempt)
    }
}

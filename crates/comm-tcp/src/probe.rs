//! Finds out whether the ranks that are to dial us are still there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::dial::{Dial, Dialed, REFUSALS_MAX};
use crate::socket::Options;

const FIRST_AFTER: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long to wait for one rank's machine to answer before the next rank is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connects to the awaited ranks now and then, one after the other, and hangs up: who lives listens.
///
/// The pauses between rounds double, so that ranks which are only late are not flooded. A death is noticed at the
/// latest when the wait is about twice as long as the rank lived into it, if the rank's machine still answers.
#[derive(Debug)]
pub(crate) struct Probe {
    options: Options,
    /// When the next round begins.
    due: Instant,
    pause: Duration,
    /// How many of the awaited ranks were asked in this round.
    asked: usize,
    question: Option<Question>,
}

/// A rank that is being asked.
#[derive(Debug)]
struct Question {
    rank: usize,
    dial: Dial,
    until: Instant,
}

impl Probe {
    /// A probe of ranks that are awaited from now on.
    pub(crate) fn new(options: Options, now: Instant) -> Self {
        Self { options, due: now + FIRST_AFTER, pause: FIRST_AFTER, asked: 0, question: None }
    }

    /// Goes on without blocking. Returns a rank that is gone, and the attempts that leave no doubt.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        awaited: &[usize],
        address: impl Fn(usize) -> SocketAddr,
    ) -> Option<(usize, &Dial)> {
        while self.question.as_mut().is_none_or(|question| question.is_answered(now, awaited)) {
            self.question = None;
            if now < self.due {
                return None;
            }
            let Some(&rank) = awaited.get(self.asked) else {
                (self.asked, self.due) = (0, now + self.pause);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                return None;
            };
            self.asked += 1;
            let dial = Dial::bare(address(rank), self.options.clone());
            self.question = Some(Question { rank, dial, until: now + PATIENCE });
        }
        let gone = self.question.as_ref().filter(|question| question.dial.refusals() >= REFUSALS_MAX);
        gone.map(|question| (question.rank, &question.dial))
    }

    /// What to wait for, unless it waits for [`Probe::next_attempt`].
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.question.as_ref().and_then(|question| question.dial.poll_fd())
    }

    /// When it goes on although nobody moves.
    pub(crate) fn next_attempt(&self) -> Instant {
        let Some(question) = &self.question else { return self.due };
        question.dial.next_attempt().unwrap_or(question.until)
    }
}

impl Question {
    /// Whether there is nothing more to learn: the rank lives, came meanwhile, or its machine says nothing.
    fn is_answered(&mut self, now: Instant, awaited: &[usize]) -> bool {
        let alive = !matches!(self.dial.advance(now), Dialed::Pending);
        let silent = now >= self.until && self.dial.refusals() == 0;
        alive || silent || !awaited.contains(&self.rank)
    }
}

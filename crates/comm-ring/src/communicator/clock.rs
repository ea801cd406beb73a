//! The deadlines of the current call.

use std::time::{Duration, Instant};

use super::patience::Patience;
use crate::RingConfig;

/// The largest pause between two announcements of a call that stays blocked.
const ANNOUNCE_EVERY_MAX: Duration = Duration::from_secs(5);

/// The number of times that data moves between two looks at the clock in a call that never sleeps.
const MOVES_PER_CHECK: u32 = 64;

/// The times of the current call.
///
/// They count from the first wait that does not end immediately, because reading the clock would
/// take a large part of the time of a small call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) timeout: Duration,
    announce_after: Duration,
    /// The longest time before the deadline at which all ranks are asked for their state.
    diagnosis: Duration,
    times: Option<Times>,
    moves: u32,
}

/// The instants at which something is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    deadline: Option<Instant>,
    /// The time to ask all ranks for their state, unless they were asked already.
    ask_at: Option<Instant>,
    answers_within: Duration,
    /// The time that their answers may take, once they were asked.
    answers: Option<Patience>,
    announce_at: Instant,
    announce_every: Duration,
}

impl Clock {
    #[inline]
    pub(super) fn new(timeout: Duration, config: &RingConfig) -> Self {
        let RingConfig { announce_after, diagnosis, .. } = *config;
        Self { timeout, announce_after, diagnosis, times: None, moves: 0 }
    }

    /// Whether the call has waited.
    #[inline]
    pub(super) const fn has_started(&self) -> bool {
        self.times.is_some()
    }

    /// Counts a wait after which data has moved. Returns whether the deadline must be checked.
    #[inline]
    pub(super) const fn is_check_due(&mut self) -> bool {
        self.moves = self.moves.wrapping_add(1);
        self.moves.is_multiple_of(MOVES_PER_CHECK)
    }

    /// Returns the times, which count from `now` if the clock has not started.
    pub(super) fn start(&mut self, now: Instant) -> &mut Times {
        self.times.get_or_insert_with(|| {
            // Ranks with a short deadline must exchange announcements before it passes.
            let first = self.announce_after.min(self.timeout / 4);
            let answers_within = self.diagnosis.min(self.timeout / 2);
            Times {
                deadline: now.checked_add(self.timeout),
                ask_at: (!answers_within.is_zero())
                    .then(|| now.checked_add(self.timeout - answers_within))
                    .flatten(),
                answers_within,
                answers: None,
                announce_at: now + first,
                announce_every: first.max(Duration::from_millis(1)),
            }
        })
    }
}

impl Times {
    /// Returns whether the deadline has passed, and also the time for answers, even if this rank
    /// was stopped or asked too late.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let awaits_answers = self.answers.as_mut().is_some_and(|answers| !answers.left(now).is_zero());
        !awaits_answers && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    pub(super) fn must_ask(&self, now: Instant) -> bool {
        self.ask_at.is_some_and(|at| now >= at)
    }

    pub(super) fn must_announce(&self, now: Instant) -> bool {
        now >= self.announce_at
    }

    /// Records that all ranks were asked.
    pub(super) fn asked(&mut self, now: Instant) {
        self.ask_at = None;
        self.answers = Some(Patience::new(self.answers_within, now));
    }

    pub(super) fn announced(&mut self, now: Instant) {
        self.announce_every = (self.announce_every * 2).min(ANNOUNCE_EVERY_MAX);
        self.announce_at = now + self.announce_every;
    }

    pub(super) fn until_next(&self, now: Instant) -> Duration {
        let answers = self.answers.filter(|answers| !answers.is_over());
        let deadline = answers.map_or(self.deadline, |answers| now.checked_add(answers.turn()));
        let next = [deadline, self.ask_at].into_iter().flatten().fold(self.announce_at, Instant::min);
        next.saturating_duration_since(now)
    }
}

//! Waiting between two polls of MPI.

use std::time::{Duration, Instant};

/// The polls before the first yield. MPI itself makes progress in each.
const SPINS: u32 = 64;
/// The polls between two looks at the clock and at notices.
const POLLS_PER_CHECK: u32 = 16;
/// The time after which a wait is long, so that sleeping costs little of it. Sooner, sleeping would
/// slow down transfers, which progress only in polls.
const AWAKE_MAX: Duration = Duration::from_secs(1);
const SLEEP: Duration = Duration::from_micros(100);

/// The state of one wait.
#[derive(Debug)]
pub(crate) struct Pause {
    polls: u32,
    since: Option<Instant>,
}

impl Pause {
    pub(crate) const fn new() -> Self {
        Self { polls: 0, since: None }
    }

    /// Lets other threads run after a poll that completed nothing. Returns the time if it is time
    /// to look at deadlines and notices.
    pub(crate) fn after_poll(&mut self) -> Option<Instant> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls < SPINS && self.since.is_none() {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        if !self.polls.is_multiple_of(POLLS_PER_CHECK) {
            return None;
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) > AWAKE_MAX {
            std::thread::sleep(SLEEP);
        }
        Some(now)
    }
}

/// The deadline of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    /// The timeout, for errors.
    pub(crate) after: Duration,
}

impl Deadline {
    /// Returns the deadline of a call that starts now.
    pub(crate) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        // A timeout beyond the clock's range is as good as a century.
        let at = now.checked_add(timeout).unwrap_or(now + Duration::from_hours(24 * 36_500));
        Self { at, after: timeout }
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.at
    }
}

//! Deadlines.

use std::time::{Duration, Instant};

/// The deadline of an operation, as its start and its timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) began: Instant,
    pub(crate) after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        Self { began: Instant::now(), after }
    }

    pub(crate) fn left(&self) -> Duration {
        self.after.saturating_sub(self.began.elapsed())
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.began.elapsed() >= self.after
    }
}

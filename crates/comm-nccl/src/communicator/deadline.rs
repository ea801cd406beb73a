//! By when something must be done.

use std::time::{Duration, Instant};

/// By when something must be done, when it began, and how long it was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) began: Instant,
    pub(super) after: Duration,
}

impl Deadline {
    pub(super) fn after(after: Duration) -> Self {
        Self { began: Instant::now(), after }
    }

    pub(super) fn has_passed(&self) -> bool {
        self.began.elapsed() >= self.after
    }
}

//! Pauses between polls.

use std::thread;
use std::time::Duration;

/// The number of pauses that only yield. This is enough for short waits.
const YIELDS: u32 = 64;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Growing pauses between polls.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    asked: u32,
    sleep: Duration,
}

impl Pause {
    pub(crate) fn wait(&mut self) {
        if self.asked < YIELDS {
            self.asked += 1;
            return thread::yield_now();
        }
        self.sleep = (self.sleep * 2).clamp(SLEEP_MIN, SLEEP_MAX);
        thread::sleep(self.sleep);
    }
}

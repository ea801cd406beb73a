//! Waits for a condition.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// No test waits longer for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until the function returns a value.
pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        sleep(Duration::from_millis(5));
    }
}

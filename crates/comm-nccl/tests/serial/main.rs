//! Tests that change settings of the emulator for the whole process, or count calls of the whole
//! process. They run one at a time.

mod coalesced;
#[path = "../common/mod.rs"]
mod common;
mod late;
mod pinned;
mod synchronous_allocation;
mod versions;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test runs, and returns a guard to hold until the end of the test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Another test may have panicked while it held the lock.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

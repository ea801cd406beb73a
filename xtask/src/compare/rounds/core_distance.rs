//! Whether the machine has changed between measurements: how far its cores are apart.
//!
//! The host of a virtual machine may move its processors at any time, so that they share a cache or
//! not. That changes the time of a small call several times over, and with it the ratio of two
//! libraries of which one was measured before and one after. The round trip of a flag between two
//! cores shows it.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::compare::limits;
use crate::error::Result;

/// The ratio of two round trips if the distance has changed. Otherwise they differ by a tenth.
const CHANGE: f64 = 1.5;
/// The time to wait for an earlier distance.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks.
const BETWEEN: Duration = Duration::from_millis(100);

/// The distance between two cores at some time.
#[derive(Debug)]
pub(super) struct CoreDistance<'a> {
    /// The program that measures limits.
    limits: &'a Path,
    /// The round trip of a flag, or `None` if changes do not matter.
    round_trip: Option<f64>,
}

impl<'a> CoreDistance<'a> {
    pub(super) fn now(limits: &'a Path) -> Result<Self> {
        Ok(Self { limits, round_trip: round_trip(limits)? })
    }

    /// A distance that every other one equals.
    pub(super) const fn unknown(limits: &'a Path) -> Self {
        Self { limits, round_trip: None }
    }

    /// Whether the distance is the same now.
    pub(super) fn is_unchanged(&self) -> Result<bool> {
        let Some(before) = self.round_trip else { return Ok(true) };
        Ok(round_trip(self.limits)?.is_none_or(|now| before.max(now) < CHANGE * before.min(now)))
    }

    /// Waits until the distance is the same again. Returns whether it is.
    pub(super) fn returns(&self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            if self.is_unchanged()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(BETWEEN);
        }
    }
}

/// Measures the round trip of a flag in microseconds. Returns `None` on a machine of one core.
fn round_trip(limits: &Path) -> Result<Option<f64>> {
    let measured = limits::read(Command::new(limits).arg("cores"), 0)?;
    Ok(measured.first().map(|limit| limit.value))
}

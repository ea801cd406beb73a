//! Reports a run that hangs in real time, which no virtual deadline ends.

use std::io::{Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Ends the process if a run takes too long.
#[derive(Debug)]
pub struct Watchdog {
    runs: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Creates a watchdog. If a run takes longer than `limit`, it prints the seed of the run to
    /// standard error, and ends the process: threads that wait for each other cannot be ended. A
    /// process that other processes leave little of the processor has up to ten times as long.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let (runs, next) = mpsc::channel::<u64>();
        let watch = move || {
            let Ok(mut seed) = next.recv() else { return };
            let (mut limits, mut began) = (0, processor_time());
            loop {
                match next.recv_timeout(limit) {
                    Ok(next) => (seed, limits, began) = (next, 0, processor_time()),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        limits += 1;
                        if !hangs(limits, processor_time().saturating_sub(began), limit) {
                            continue;
                        }
                        // The process ends in any case.
                        let _ = writeln!(
                            stderr(),
                            "the run of seed {seed} hangs: it takes longer than {limit:?}"
                        );
                        std::process::exit(HANG);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch).ok();
        Self { runs: Some(runs), thread }
    }

    /// Begins to measure the time of a run, and ends the measurement of the run before it.
    pub fn begin(&self, seed: u64) {
        if let Some(runs) = &self.runs {
            // Without a thread, nothing is measured.
            let _ = runs.send(seed);
        }
    }
}

/// Returns whether a run that has taken this many limits of real time, in which the process had
/// this much time on processors, hangs.
fn hangs(limits: u32, had: Duration, limit: Duration) -> bool {
    had >= limit / 2 || limits >= 10
}

/// Returns the time that this process has had on processors.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// The exit code of a process whose run hangs.
const HANG: i32 = 3;

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.runs.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_gets_no_processor_has_more_time() {
        let limit = Duration::from_secs(60);
        assert!(hangs(1, limit, limit) && hangs(1, limit / 2, limit));
        assert!(!hangs(1, limit / 20, limit) && !hangs(9, limit / 3, limit));
        // Its threads wait for each other.
        assert!(hangs(10, Duration::ZERO, limit));
    }

    #[test]
    fn time_on_processors_passes_with_work() {
        let began = processor_time();
        while processor_time() == began {}
        assert!(processor_time() > began);
    }
}

//! Reports a run that hangs in real time, which no virtual deadline ends.

use std::io::{Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Ends the process if a run takes too long.
#[derive(Debug)]
pub struct Watchdog {
    runs: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Creates a watchdog. If a run takes longer than `limit`, it prints the seed of the run to
    /// standard error, and ends the process: threads that wait for each other cannot be ended.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let (runs, next) = mpsc::channel::<u64>();
        let watch = move || {
            let Ok(mut seed) = next.recv() else { return };
            loop {
                match next.recv_timeout(limit) {
                    Ok(next) => seed = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
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

    /// Begins to measure the time of a run, and ends that of the run before it.
    pub fn begin(&self, seed: u64) {
        if let Some(runs) = &self.runs {
            // Without a thread, nothing is measured.
            let _ = runs.send(seed);
        }
    }
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

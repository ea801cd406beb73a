//! The signals that ask the launcher to stop, turned into something that can be waited for.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What a terminal, a batch system and a lost connection send.
const STOPPING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Holds the stopping signals back from this process, until dropped.
#[derive(Debug)]
pub(super) struct StopSignals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    released: Arc<AtomicBool>,
}

impl StopSignals {
    /// Catches SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore:
    /// whoever uses `nohup` means it.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = IgnoredSignals::of_this_process()?;
        let caught: Vec<i32> =
            STOPPING.into_iter().filter(|signal| !ignored.contains(*signal)).map(Signal::as_raw).collect();
        let released = Arc::new(AtomicBool::new(false));
        for signal in &caught {
            // An installed handler cannot be taken out again, so it has to do what the default did
            // once we are gone.
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&released))?;
        }
        let (read, write) = UnixStream::pair()?;
        Ok(Self { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, caught)?, released })
    }

    /// The signals that have arrived since the last call. Two of a kind that arrived together count
    /// once.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        let arrived: Vec<i32> = self.delivery.pending().collect();
        STOPPING.into_iter().filter(|signal| arrived.contains(&signal.as_raw())).collect()
    }
}

impl AsFd for StopSignals {
    /// Readable while signals wait to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

/// The set of signals that a process ignores.
#[derive(Clone, Copy, Debug)]
struct IgnoredSignals(u64);

impl IgnoredSignals {
    fn of_this_process() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no SigIgn in /proc/self/status"))
    }

    fn parse(status: &str) -> Option<Self> {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok().map(Self)
    }

    fn contains(self, signal: Signal) -> bool {
        // Signal 1 is bit 0.
        self.0 >> (signal.as_raw() - 1) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let ignored =
            IgnoredSignals::parse("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n")
                .expect("a mask");
        assert!(ignored.contains(Signal::HUP));
        assert!(ignored.contains(Signal::PIPE));
        assert!(!ignored.contains(Signal::INT));
        assert!(IgnoredSignals::parse("Name:\tx\n").is_none());
    }
}

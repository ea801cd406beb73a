//! Receives the signals that stop the launcher through a file descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals sent by Ctrl-C, by batch systems and when the terminal closes.
const STOPPING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Catches the stop signals of this process until dropped.
#[derive(Debug)]
pub(super) struct StopSignals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    released: Arc<AtomicBool>,
}

impl StopSignals {
    /// Catches SIGINT, SIGTERM and SIGHUP, except those that this process ignores, as under
    /// `nohup`.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = IgnoredSignals::of_this_process()?;
        let caught: Vec<i32> =
            STOPPING.into_iter().filter(|signal| !ignored.contains(*signal)).map(Signal::as_raw).collect();
        let released = Arc::new(AtomicBool::new(false));
        for signal in &caught {
            // A handler cannot be removed, so it emulates the default action after `self` is
            // dropped.
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&released))?;
        }
        let (read, write) = UnixStream::pair()?;
        Ok(Self { delivery: SignalDelivery::with_pipe(read, write, SignalOnly, caught)?, released })
    }

    /// Returns the signals since the last call, each at most once.
    pub(super) fn take(&mut self) -> Vec<Signal> {
        let arrived: Vec<i32> = self.delivery.pending().collect();
        STOPPING.into_iter().filter(|signal| arrived.contains(&signal.as_raw())).collect()
    }
}

impl AsFd for StopSignals {
    /// Readable while signals are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

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

//! Detects messages that no call will ever receive.
//!
//! A rank that only sends completes its call regardless of the others, and its message may reach a
//! rank on which no later call receives it. Such a message belongs to a call that is complete
//! there, so its sender must have made a different call with the same number.

use std::time::{Duration, Instant};

use comm_core::{Armed, Interest};

use super::session::Session;
use crate::executor::Stop;
use crate::message::Header;

/// The interval at which calls check all streams.
const EVERY: Duration = Duration::from_millis(10);

/// The time of the next check, and memory for it.
#[derive(Debug, Default)]
pub(super) struct UnexpectedCheck {
    next: Option<Instant>,
    open: Interest,
}

impl Session {
    /// Returns an error if the call that is starting is already known to fail.
    #[inline]
    pub(super) fn check_control(&mut self) -> Result<(), Stop> {
        self.check_pending_abort()?;
        if !self.control.is_quiet(self.history.last()) {
            self.check_members()?;
            self.compare_with_announced()?;
        }
        Ok(())
    }

    /// Reads the control channel, unless it was read recently. Every call does so when it first
    /// waits, or at its end if it never waits, because it may have started so late that others have
    /// aborted it. A call that waits for a long time reads the rest before it sleeps.
    #[inline]
    pub(super) fn poll_control(&mut self, now: Instant) -> Result<(), Stop> {
        if self.unexpected.next.is_some_and(|next| now < next) { Ok(()) } else { self.read_control(now) }
    }

    #[cold]
    fn read_control(&mut self, now: Instant) -> Result<(), Stop> {
        if self.group.size() > 1 && self.arm_control()? == Armed::Ready {
            self.handle_events()?;
        }
        self.check_control()?;
        self.check_unexpected(now)
    }

    /// Returns an error if the next message from some rank cannot belong to the current or a later
    /// call. Must be called between passes. Skips ranks from which the call expects a message,
    /// because the call checks that message itself.
    pub(super) fn check_unexpected(&mut self, now: Instant) -> Result<(), Stop> {
        self.unexpected.next = Some(now + EVERY);
        if !self.data.is_full_mesh() || self.unexpected.open.recv().is_empty() {
            self.unexpected.open.clear();
            let mut next = self.data.next_open(0);
            while let Some(peer) = next {
                self.unexpected.open.add_recv(peer);
                next = self.data.next_open(peer + 1);
            }
        }
        if self.data.arm(&self.unexpected.open)? == Armed::Sleep {
            return Ok(());
        }
        let mut next = self.data.next_open(0);
        while let Some(from) = next {
            if let Some(sequence) = self.unexpected(from) {
                return Err(Stop::Mismatch { from, sequence, lengths: None });
            }
            next = self.data.next_open(from + 1);
        }
        Ok(())
    }

    /// Returns the number of the call to which the next message from a rank belongs, if no call of
    /// this rank can receive it.
    fn unexpected(&mut self, from: usize) -> Option<u64> {
        if self.executor.interest().recv().contains(&from) || !self.data.is_open(from) {
            return None;
        }
        // A broken stream is reported by the call that needs it.
        let filled = self.data.fill_buf(from, Header::BYTES).ok()?;
        let mut bytes = [0; Header::BYTES];
        let whole = filled.copy_to(&mut bytes) == bytes.len();
        let header = Header::decode(&bytes);
        let ours = self.history.last();
        let same = || self.history.get(ours).is_some_and(|call| call.fingerprint() == header.fingerprint);
        let unexpected = header.sequence < ours || (header.sequence == ours && !same());
        (whole && unexpected).then_some(header.sequence)
    }
}

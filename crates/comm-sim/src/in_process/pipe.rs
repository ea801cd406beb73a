//! The byte queue from one rank to another.

use std::io::IoSlice;

use comm_core::Loss;

use crate::{ByteQueue, Release, revocation};

/// The bytes in flight from one rank to another, and whether the two ranks sleep. It is protected
/// by a mutex.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    bytes: ByteQueue,
    accepted: u64,
    consumed: u64,
    /// The released position that was last returned to the sender.
    released_reported: u64,
    /// Whether the last attempt to send accepted fewer bytes than were offered.
    fell_short: bool,
    pub(super) sender_gone: bool,
    pub(super) receiver_gone: bool,
    revoked: bool,
    sender_sleeps: bool,
    receiver_sleeps: bool,
}

impl Pipe {
    /// Returns the reason why nothing more can be sent, if there is one.
    pub(super) fn send_loss(&self) -> Option<Loss> {
        if self.revoked { Some(revocation()) } else { self.receiver_gone.then_some(Loss::Closed) }
    }

    /// Returns the reason why nothing more can be received, if there is one. Bytes that arrived
    /// before the end are received first.
    pub(super) fn recv_loss(&self) -> Option<Loss> {
        if self.revoked {
            Some(revocation())
        } else {
            (self.sender_gone && self.bytes.is_empty()).then_some(Loss::Closed)
        }
    }

    /// Accepts the first `take` bytes of `parts`, which have `offered` bytes in total.
    pub(super) fn accept(&mut self, parts: &[IoSlice<'_>], offered: usize, take: usize) {
        let mut left = take;
        for part in parts {
            let now = part.len().min(left);
            self.bytes.push(&part[..now]);
            left -= now;
        }
        self.accepted += take as u64;
        self.fell_short = take < offered;
    }

    /// Returns the free space in bytes.
    pub(super) fn space(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.bytes.len())
    }

    /// Returns the position below which bytes are released.
    pub(super) fn released(&mut self, release: Release) -> u64 {
        self.released_reported = self.released_position(release);
        self.released_reported
    }

    /// Returns the number of accepted bytes that are not released.
    pub(super) fn unreleased(&self, release: Release) -> u64 {
        self.accepted - self.released_position(release)
    }

    fn released_position(&self, release: Release) -> u64 {
        let read_on = !self.revoked && !self.receiver_gone;
        match release {
            Release::OnConsume if read_on => self.consumed,
            Release::OnAccept | Release::OnConsume => self.accepted,
        }
    }

    /// Returns the bytes that have arrived.
    pub(super) const fn bytes(&mut self) -> &mut ByteQueue {
        &mut self.bytes
    }

    /// Drops the first bytes, which the receiver must have seen.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
        self.consumed += bytes as u64;
    }

    /// Revokes unconsumed bytes, and returns whether there were any.
    pub(super) fn revoke(&mut self, release: Release) -> bool {
        let revoked = self.unreleased(release) > 0;
        if revoked {
            self.revoked = true;
            self.bytes.clear();
        }
        revoked
    }

    /// Returns whether the sender may be able to continue; if not, marks it as asleep.
    ///
    /// A sender whose last attempt was fully accepted waits for release, if anything is unreleased.
    pub(super) fn arm_sender(&mut self, capacity: usize, release: Release) -> bool {
        let ready = if self.send_loss().is_some() {
            true
        } else if !self.fell_short && self.unreleased(release) > 0 {
            self.released_position(release) != self.released_reported
        } else {
            self.space(capacity) > 0
        };
        self.sender_sleeps = !ready;
        ready
    }

    /// Returns whether the receiver may be able to continue; if not, marks it as asleep.
    pub(super) fn arm_receiver(&mut self) -> bool {
        let ready = self.recv_loss().is_some() || !self.bytes.is_empty();
        self.receiver_sleeps = !ready;
        ready
    }

    /// Returns whether the sender sleeps and must be woken.
    pub(super) const fn should_wake_sender(&mut self) -> bool {
        std::mem::replace(&mut self.sender_sleeps, false)
    }

    /// Returns whether the receiver sleeps and must be woken.
    pub(super) const fn should_wake_receiver(&mut self) -> bool {
        std::mem::replace(&mut self.receiver_sleeps, false)
    }
}

//! The byte queue from one rank to another.

use std::io::IoSlice;

use comm_core::Loss;

use crate::{ByteQueue, Release, revocation};

/// The bytes on their way from one rank to another, and who sleeps on them. Behind a mutex.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    bytes: ByteQueue,
    accepted: u64,
    consumed: u64,
    /// What the sender was last told about released bytes.
    released_told: u64,
    /// Whether the last attempt to send fell short.
    fell_short: bool,
    sender_gone: bool,
    receiver_gone: bool,
    revoked: bool,
    sender_sleeps: bool,
    receiver_sleeps: bool,
}

impl Pipe {
    /// Why nothing can be sent any more.
    pub(super) fn send_loss(&self) -> Option<Loss> {
        if self.revoked { Some(revocation()) } else { self.receiver_gone.then_some(Loss::Closed) }
    }

    /// Why nothing can be received any more. Bytes that arrived before the end come first.
    pub(super) fn recv_loss(&self) -> Option<Loss> {
        if self.revoked {
            Some(revocation())
        } else {
            (self.sender_gone && self.bytes.is_empty()).then_some(Loss::Closed)
        }
    }

    /// Takes `take` bytes of `parts`, which have at least as many. The sender offered `offered` in all.
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

    /// How many bytes there is room for.
    pub(super) fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.bytes.len())
    }

    /// The position below which bytes are released.
    pub(super) fn released(&mut self, release: Release) -> u64 {
        self.released_told = self.released_position(release);
        self.released_told
    }

    /// How many accepted bytes are not released.
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

    /// What has arrived.
    pub(super) const fn bytes(&mut self) -> &mut ByteQueue {
        &mut self.bytes
    }

    /// Drops the first bytes, which must have been shown.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
        self.consumed += bytes as u64;
    }

    /// Takes back what is not consumed, and says whether there was anything.
    pub(super) fn revoke(&mut self, release: Release) -> bool {
        let lent = self.unreleased(release) > 0;
        if lent {
            self.revoked = true;
            self.bytes.clear();
        }
        lent
    }

    pub(super) const fn leave_sender(&mut self) {
        self.sender_gone = true;
    }

    pub(super) const fn leave_receiver(&mut self) {
        self.receiver_gone = true;
    }

    /// Whether the sender may be able to go on; if not, marks it as asleep.
    ///
    /// A sender whose last attempt went through whole waits for the release of what it sent, if anything is unreleased.
    pub(super) fn arm_sender(&mut self, capacity: usize, release: Release) -> bool {
        let ready = if self.send_loss().is_some() {
            true
        } else if !self.fell_short && self.unreleased(release) > 0 {
            self.released_position(release) != self.released_told
        } else {
            self.room(capacity) > 0
        };
        self.sender_sleeps = !ready;
        ready
    }

    /// Whether the receiver may be able to go on; if not, marks it as asleep.
    pub(super) fn arm_receiver(&mut self) -> bool {
        let ready = self.recv_loss().is_some() || !self.bytes.is_empty();
        self.receiver_sleeps = !ready;
        ready
    }

    /// Whether the sender sleeps and must be woken.
    pub(super) const fn rouse_sender(&mut self) -> bool {
        std::mem::replace(&mut self.sender_sleeps, false)
    }

    /// Whether the receiver sleeps and must be woken.
    pub(super) const fn rouse_receiver(&mut self) -> bool {
        std::mem::replace(&mut self.receiver_sleeps, false)
    }
}

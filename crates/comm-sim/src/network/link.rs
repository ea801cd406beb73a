//! One direction of a link between two ranks.

use std::collections::VecDeque;
use std::time::Duration;

use comm_core::Loss;

use crate::{ByteQueue, Release, revocation};

/// What travels. Times count from the start of the network.
#[derive(Debug)]
pub(super) struct Parcel {
    /// When its last byte leaves the sender.
    pub(super) departs: Duration,
    /// When it arrives.
    pub(super) arrives: Duration,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    End(Loss),
}

/// The stream from one rank to another.
#[derive(Debug, Default)]
pub(super) struct Link {
    travelling: VecDeque<Parcel>,
    arrived: ByteQueue,
    /// Until when the link is busy with what was sent.
    busy_until: Duration,
    accepted: u64,
    consumed: u64,
    /// How much of what was consumed the sender has heard of.
    credited: u64,
    released_told: u64,
    fell_short: bool,
    /// Why nothing can be received, once what arrived is consumed.
    recv_end: Option<Loss>,
    /// Why nothing can be sent.
    send_end: Option<Loss>,
}

impl Link {
    pub(super) fn send_loss(&self) -> Option<Loss> {
        self.send_end.clone()
    }

    /// Why nothing can be received any more. Bytes that arrived before the end come first.
    pub(super) fn recv_loss(&self) -> Option<Loss> {
        self.recv_end.clone().filter(|_| self.arrived.is_empty())
    }

    pub(super) const fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub((self.accepted - self.credited) as usize)
    }

    /// Notes that the sender offered bytes and some were taken.
    pub(super) const fn note_offer(&mut self, offered: usize, taken: usize) {
        self.accepted += taken as u64;
        self.fell_short = taken < offered;
    }

    /// Keeps the link busy for `time` from `now` on, or after what it carries, and returns until when.
    pub(super) fn occupy(&mut self, now: Duration, time: Duration) -> Duration {
        self.busy_until = self.busy_until.max(now) + time;
        self.busy_until
    }

    /// Puts a parcel on the way, which arrives no earlier than those before. Returns when.
    pub(super) fn dispatch(&mut self, mut parcel: Parcel) -> Duration {
        let before = self.travelling.back().map_or(Duration::ZERO, |last| last.arrives);
        parcel.arrives = parcel.arrives.max(before);
        let arrives = parcel.arrives;
        self.travelling.push_back(parcel);
        arrives
    }

    /// Delivers what has arrived by now, and says whether the stream ended.
    pub(super) fn deliver(&mut self, now: Duration) -> bool {
        let mut ended = false;
        while self.travelling.front().is_some_and(|parcel| parcel.arrives <= now) {
            match self.travelling.pop_front().map(|parcel| parcel.content) {
                Some(Content::Bytes(bytes)) if self.recv_end.is_none() => self.arrived.push(&bytes),
                Some(Content::End(loss)) => {
                    self.recv_end.get_or_insert(loss);
                    ended = true;
                }
                Some(Content::Bytes(_)) | None => {}
            }
        }
        ended
    }

    /// Loses what has not left the sender by `now`. The link is free again.
    pub(super) fn lose_undeparted(&mut self, now: Duration) {
        self.travelling.retain(|parcel| parcel.departs <= now);
        self.busy_until = self.busy_until.min(now);
    }

    /// Loses what is on the way.
    pub(super) fn lose_all(&mut self, now: Duration) {
        self.travelling.clear();
        self.busy_until = self.busy_until.min(now);
    }

    /// Tells the sender that nothing can be sent any more. Says whether that is news.
    pub(super) fn end_sending(&mut self, loss: Loss) -> bool {
        let news = self.send_end.is_none();
        self.send_end.get_or_insert(loss);
        news
    }

    pub(super) const fn arrived(&mut self) -> &mut ByteQueue {
        &mut self.arrived
    }

    /// Drops the first bytes, which must have been shown. Returns the position up to which all are consumed.
    pub(super) fn consume(&mut self, bytes: usize) -> u64 {
        self.arrived.consume(bytes);
        self.consumed += bytes as u64;
        self.consumed
    }

    /// Tells the sender what was consumed.
    pub(super) fn credit(&mut self, position: u64) {
        self.credited = self.credited.max(position);
    }

    pub(super) fn released(&mut self, release: Release) -> u64 {
        self.released_told = self.released_position(release);
        self.released_told
    }

    fn released_position(&self, release: Release) -> u64 {
        match release {
            Release::OnConsume if self.send_end.is_none() => self.credited,
            Release::OnAccept | Release::OnConsume => self.accepted,
        }
    }

    /// Takes back what is not released, and says whether there was anything.
    pub(super) fn revoke(&mut self, release: Release) -> bool {
        let lent = self.released_position(release) < self.accepted;
        if lent {
            self.travelling.clear();
            self.arrived.clear();
            self.recv_end = Some(revocation());
            self.send_end.get_or_insert_with(revocation);
        }
        lent
    }

    /// Whether a sender may be able to go on. One whose last attempt went through whole waits for the release of what
    /// it sent, if anything is unreleased.
    pub(super) fn can_send(&self, capacity: usize, release: Release) -> bool {
        let released = self.released_position(release);
        if self.send_end.is_none() && !self.fell_short && released < self.accepted {
            return released != self.released_told;
        }
        self.send_end.is_some() || self.room(capacity) > 0
    }

    /// Whether a receiver may be able to go on.
    pub(super) fn can_recv(&self) -> bool {
        !self.arrived.is_empty() || self.recv_end.is_some()
    }
}

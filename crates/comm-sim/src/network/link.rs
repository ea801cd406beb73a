//! One direction of a link between two ranks.

use std::collections::VecDeque;
use std::time::Duration;

use comm_core::Loss;

use crate::{ByteQueue, Release, revocation};

/// A message in flight. Times count from the start of the network.
#[derive(Debug)]
pub(super) struct Packet {
    /// The time at which its last byte leaves the sender.
    pub(super) departs: Duration,
    /// The time at which it arrives.
    pub(super) arrives: Duration,
    pub(super) content: Payload,
}

#[derive(Debug)]
pub(super) enum Payload {
    Bytes(Vec<u8>),
    End(Loss),
}

/// The stream from one rank to another.
#[derive(Debug, Default)]
pub(super) struct Link {
    travelling: VecDeque<Packet>,
    arrived: ByteQueue,
    /// The time until which the link is busy with sent bytes.
    busy_until: Duration,
    /// The time until which the link delivers nothing.
    cut_until: Duration,
    accepted: u64,
    consumed: u64,
    /// The consumed position that the sender has been notified of.
    credited: u64,
    released_reported: u64,
    fell_short: bool,
    /// The reason why nothing more can be received once the arrived bytes are consumed.
    recv_end: Option<Loss>,
    /// The reason why nothing more can be sent.
    send_end: Option<Loss>,
}

impl Link {
    pub(super) fn send_loss(&self) -> Option<Loss> {
        self.send_end.clone()
    }

    /// Returns the reason why nothing more can be received, if there is one. Bytes that arrived
    /// before the end are received first.
    pub(super) fn recv_loss(&self) -> Option<Loss> {
        self.recv_end.clone().filter(|_| self.arrived.is_empty())
    }

    pub(super) const fn space(&self, capacity: usize) -> usize {
        capacity.saturating_sub((self.accepted - self.credited) as usize)
    }

    /// Records that the sender offered bytes and some were accepted.
    pub(super) const fn record_offer(&mut self, offered: usize, taken: usize) {
        self.accepted += taken as u64;
        self.fell_short = taken < offered;
    }

    /// Keeps the link busy for `time`, from `now` or the end of its current packets on, and returns
    /// the end of that time.
    pub(super) fn occupy(&mut self, now: Duration, time: Duration) -> Duration {
        self.busy_until = self.busy_until.max(now).max(self.cut_until) + time;
        self.busy_until
    }

    /// Holds everything back until this time. Returns whether packets are in flight, which arrive
    /// `latency` later.
    pub(super) fn cut(&mut self, until: Duration, latency: Duration) -> bool {
        self.cut_until = self.cut_until.max(until);
        let arrives = self.cut_until + latency;
        self.travelling.iter_mut().for_each(|packet| packet.arrives = packet.arrives.max(arrives));
        !self.travelling.is_empty()
    }

    pub(super) const fn cut_until(&self) -> Duration {
        self.cut_until
    }

    /// Puts a packet on the link. It arrives no earlier than the packets before it. Returns the
    /// time of arrival.
    pub(super) fn dispatch(&mut self, mut packet: Packet) -> Duration {
        let before = self.travelling.back().map_or(Duration::ZERO, |last| last.arrives);
        packet.arrives = packet.arrives.max(before);
        let arrives = packet.arrives;
        self.travelling.push_back(packet);
        arrives
    }

    /// Delivers the packets that arrive by `now`, and returns whether the stream ended.
    pub(super) fn deliver(&mut self, now: Duration) -> bool {
        let mut ended = false;
        while self.travelling.front().is_some_and(|packet| packet.arrives <= now) {
            match self.travelling.pop_front().map(|packet| packet.content) {
                Some(Payload::Bytes(bytes)) if self.recv_end.is_none() => self.arrived.push(&bytes),
                Some(Payload::End(loss)) => {
                    self.recv_end.get_or_insert(loss);
                    ended = true;
                }
                Some(Payload::Bytes(_)) | None => {}
            }
        }
        ended
    }

    /// Drops packets that have not left the sender by `now`, and frees the link.
    pub(super) fn lose_undeparted(&mut self, now: Duration) {
        self.travelling.retain(|packet| packet.departs <= now);
        self.busy_until = self.busy_until.min(now);
    }

    /// Drops all packets in flight, and frees the link.
    pub(super) fn lose_all(&mut self, now: Duration) {
        self.travelling.clear();
        self.busy_until = self.busy_until.min(now);
    }

    /// Ends the stream for both sides at once, and drops everything in flight.
    pub(super) fn break_off(&mut self, loss: &Loss) {
        self.travelling.clear();
        self.recv_end.get_or_insert_with(|| loss.clone());
        self.send_end.get_or_insert_with(|| loss.clone());
    }

    /// Notifies the sender that nothing more can be sent. Returns whether this is the first
    /// notification.
    pub(super) fn end_sending(&mut self, loss: Loss) -> bool {
        let is_first = self.send_end.is_none();
        self.send_end.get_or_insert(loss);
        is_first
    }

    /// Drops the bytes that have arrived, which nobody will receive.
    pub(super) fn discard_arrived(&mut self) {
        self.arrived = ByteQueue::default();
    }

    pub(super) const fn arrived(&mut self) -> &mut ByteQueue {
        &mut self.arrived
    }

    /// Drops the first bytes, which must be visible to the receiver. Returns the consumed position.
    pub(super) fn consume(&mut self, bytes: usize) -> u64 {
        self.arrived.consume(bytes);
        self.consumed += bytes as u64;
        self.consumed
    }

    /// Notifies the sender of the consumed position.
    pub(super) fn credit(&mut self, position: u64) {
        self.credited = self.credited.max(position);
    }

    pub(super) fn released(&mut self, release: Release) -> u64 {
        self.released_reported = self.released_position(release);
        self.released_reported
    }

    fn released_position(&self, release: Release) -> u64 {
        match release {
            Release::OnConsume if self.send_end.is_none() => self.credited,
            Release::OnAccept | Release::OnConsume => self.accepted,
        }
    }

    /// Revokes bytes that are not released, and returns whether there were any.
    pub(super) fn revoke(&mut self, release: Release) -> bool {
        let has_unreleased = self.released_position(release) < self.accepted;
        if has_unreleased {
            self.travelling.clear();
            self.arrived.clear();
            self.recv_end = Some(revocation());
            self.send_end.get_or_insert_with(revocation);
        }
        has_unreleased
    }

    /// Returns whether a sender may be able to continue. A sender whose last attempt was fully
    /// accepted waits for release, if anything is unreleased.
    pub(super) fn can_send(&self, capacity: usize, release: Release) -> bool {
        let released = self.released_position(release);
        if self.send_end.is_none() && !self.fell_short && released < self.accepted {
            return released != self.released_reported;
        }
        self.send_end.is_some() || self.space(capacity) > 0
    }

    /// Returns whether a receiver may be able to continue.
    pub(super) fn can_recv(&self) -> bool {
        !self.arrived.is_empty() || self.recv_end.is_some()
    }
}

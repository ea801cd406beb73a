//! Segments on their way between the two sides of a connection.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

use super::{PeerEnd, rank_at};
use crate::network::faults::FOREVER;
use crate::network::world::{Event, World};

/// A segment of data that travels from one side to the other.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) departs: Duration,
    pub(super) arrives: Duration,
    pub(super) content: SegmentContent,
}

#[derive(Debug)]
pub(super) enum SegmentContent {
    /// A request to connect to an address.
    Syn(SocketAddr),
    /// The answer that the connection exists.
    SynAck,
    /// The answer to this side that nobody listens at the address.
    Refusal,
    Bytes(Vec<u8>),
    End,
    Reset,
}

impl World {
    /// Puts a segment on its way.
    pub(super) fn send_segment(&mut self, id: usize, mut content: SegmentContent) {
        let bytes = if let SegmentContent::Bytes(bytes) = &content { bytes.len() } else { 0 };
        self.log.mix(self.now(), [10, id, bytes, 0]);
        self.tamper_with_segment(id, &mut content);
        let delay = self.delay_of(bytes);
        let (now, latency, jitter) = (self.now(), self.plan.latency, self.jitter());
        let socket = &mut self.sockets.sockets[id];
        socket.busy_until = socket.busy_until.max(now) + delay;
        let departs = socket.busy_until;
        let before = socket.segments.back().map_or(Duration::ZERO, |last| last.arrives);
        let arrives = (departs + latency + jitter).max(before);
        socket.segments.push_back(Segment { departs, arrives, content });
        self.plan_event(arrives - now, Event::Segment { socket: id });
    }

    /// Changes or duplicates the bytes if they are the next ones after such a fault.
    pub(super) fn tamper_with_segment(&mut self, id: usize, content: &mut SegmentContent) {
        let sockets = &self.sockets.sockets;
        let Some(peer) = sockets[id].peer else { return };
        let SegmentContent::Bytes(bytes) = content else { return };
        if let Some(duplicates) = self.take_tampering(sockets[id].rank, sockets[peer].rank) {
            if duplicates {
                bytes.extend_from_within(..);
            } else {
                self.flip(bytes);
            }
        }
    }

    /// Lets the next segment of a side arrive, unless the link delivers nothing at present.
    pub(in crate::network) fn deliver_segment(&mut self, id: usize) {
        let socket = &self.sockets.sockets[id];
        let Some(Segment { content, .. }) = socket.segments.front() else { return };
        let to = match content {
            SegmentContent::Syn(address) => {
                let address = *address;
                let listener = self.sockets.listener_at(address);
                listener.map(|at| self.sockets.listeners[at].rank).or_else(|| rank_at(address.ip()))
            }
            SegmentContent::Refusal => None,
            _ => socket.peer.map(|peer| self.sockets.sockets[peer].rank),
        };
        let socket = &self.sockets.sockets[id];
        if let Some(until) = to.and_then(|to| self.cut_until(socket.rank, to)) {
            if until < FOREVER {
                let after = until.saturating_sub(self.now()) + self.plan.latency;
                self.plan_event(after, Event::Segment { socket: id });
            }
            return;
        }
        let now = self.now();
        if socket.segments.front().is_some_and(|segment| segment.arrives > now) {
            return;
        }
        let Some(Segment { content, .. }) = self.sockets.sockets[id].segments.pop_front() else { return };
        match content {
            SegmentContent::Syn(to) => self.connect_to_listener(id, to),
            SegmentContent::Refusal => self.close_socket(id, ErrorKind::ConnectionRefused),
            content => {
                if let Some(peer) = self.sockets.sockets[id].peer {
                    self.handle_segment(peer, content);
                }
            }
        }
    }

    /// Handles a segment that has arrived for a side.
    pub(super) fn handle_segment(&mut self, id: usize, content: SegmentContent) {
        let socket = &mut self.sockets.sockets[id];
        match content {
            SegmentContent::SynAck => {
                let mut filler = vec![0; std::mem::take(&mut socket.filler)];
                // The process wrote it before anything else.
                let _ = socket.end.as_ref().map(|mut end| end.read_exact(&mut filler));
                let rank = socket.rank;
                self.wake_system(rank);
                self.read_sent(id);
            }
            // As the system answers for a process that has exited.
            SegmentContent::Bytes(_) if socket.end.is_none() => self.send_segment(id, SegmentContent::Reset),
            SegmentContent::Bytes(bytes) => {
                socket.arrived.extend(bytes);
                self.write_arrived(id);
            }
            SegmentContent::End => {
                socket.peer_end = PeerEnd::Arrived;
                self.write_arrived(id);
            }
            _ => self.close_socket(id, ErrorKind::ConnectionReset),
        }
    }
}

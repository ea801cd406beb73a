//! What is said to peers.

use std::io::IoSlice;

use comm_core::{Result, Transport};

use super::operation::{Kind, Operation};
use super::peer::{Body, Current, Peer, Queued, Then};
use super::{Engine, Mine, Payload, Ticket};
use crate::point_to_point::frame::Frame;

/// How much is sent to one peer before it is another one's turn.
const BYTES_PER_TURN: usize = 1 << 20;

impl Engine {
    /// Sends to a peer what can go, as much as is its turn. Tells whether anything could.
    pub(super) fn flush(
        &mut self,
        transport: &mut dyn Transport,
        to: usize,
        mine: &Mine<'_>,
    ) -> Result<bool> {
        let mut left = BYTES_PER_TURN;
        while left > 0 && self.peers[to].is_there() && self.peers[to].has_frames() {
            let sent = self.send_some(transport, to, mine)?;
            if sent == 0 {
                break;
            }
            left = left.saturating_sub(sent);
        }
        let released = !self.peers[to].unreleased.is_empty() && self.release(transport, to);
        Ok(left < BYTES_PER_TURN || released)
    }

    /// Sends once, from where the bytes are.
    fn send_some(&mut self, transport: &mut dyn Transport, to: usize, mine: &Mine<'_>) -> Result<usize> {
        let Self { peers, operations, part_bytes, .. } = self;
        let peer = &mut peers[to];
        let Some(mut current) = take_current(peer, *part_bytes) else { return Ok(0) };
        let payload: Option<&[u8]> = match &current.queued.body {
            Body::None => Some(&[]),
            Body::Text(text) => Some(text),
            Body::Of(ticket, range) => match operations.get_mut(ticket) {
                Some(Operation { kind: Kind::Send(send), .. }) => {
                    send.begun = true;
                    send.bytes(*ticket, range.clone(), mine.send)
                }
                _ => None,
            },
        };
        let Some(payload) = payload else {
            self.misplaced();
            return Ok(0);
        };
        let head = &current.head[current.at.min(Frame::BYTES)..];
        let rest = &payload[current.at.saturating_sub(Frame::BYTES)..];
        let sent = transport.try_send(to, &[IoSlice::new(head), IoSlice::new(rest)])?;
        let (total, at) = (Frame::BYTES + payload.len(), current.at + sent);
        peer.accepted += sent as u64;
        if at == total {
            self.frame_sent(to, current.queued.then);
        } else {
            current.at = at;
            peer.current = Some(current);
        }
        Ok(sent)
    }

    fn frame_sent(&mut self, to: usize, then: Then) {
        let peer = &mut self.peers[to];
        match then {
            Then::Nothing => {}
            Then::Received(ticket) => self.end_received(ticket),
            Then::Continue(transfer) => peer.transfers.push_back(transfer),
            Then::Sent(ticket) => match self.operations.get(&ticket) {
                Some(Operation { kind: Kind::Send(send), .. })
                    if !matches!(send.payload, Payload::Copied(_)) =>
                {
                    // A transport that lends still reads the memory, which belongs to others.
                    peer.unreleased.push_back((peer.accepted, ticket));
                }
                _ => self.end(ticket, Ok(None)),
            },
        }
    }

    /// Ends sends whose memory the transport no longer reads.
    fn release(&mut self, transport: &dyn Transport, to: usize) -> bool {
        let released = transport.released(to);
        let mut moved = false;
        while let Some((position, ticket)) = self.first_unreleased(to)
            && position <= released
        {
            self.peers[to].unreleased.pop_front();
            self.end(ticket, Ok(None));
            moved = true;
        }
        moved
    }

    fn first_unreleased(&self, to: usize) -> Option<(u64, Ticket)> {
        self.peers[to].unreleased.front().copied()
    }
}

/// The frame under way, or the next one.
fn take_current(peer: &mut Peer, part_bytes: usize) -> Option<Current> {
    peer.current.take().or_else(|| {
        let queued: Queued = peer.next_frame(part_bytes)?;
        Some(Current { head: queued.frame.encode(), queued, at: 0 })
    })
}

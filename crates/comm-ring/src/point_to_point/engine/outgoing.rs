//! What is said to peers.

use std::io::IoSlice;

use comm_core::{Result, Transport};

use super::operation::{Kind, Operation, misplaced};
use super::peer::{Body, Current, Then};
use super::{Engine, Mine, Payload, Ticket};
use crate::point_to_point::frame::Frame;

/// How much is sent to one peer before it is another one's turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// How many frames one write takes at most, and with how many bytes it takes no more of them.
const FRAMES_AT_ONCE: usize = 8;
const BYTES_AT_ONCE: usize = 16 << 10;

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
        self.gather(to);
        let mut pieces = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
        let under_way = &self.peers[to].under_way;
        for (current, pieces) in under_way.iter().zip(pieces.chunks_exact_mut(2)) {
            let payload = self.payload(&current.queued.body, mine)?;
            pieces[0] = IoSlice::new(&current.head[current.at.min(Frame::BYTES)..]);
            pieces[1] = IoSlice::new(&payload[current.at.saturating_sub(Frame::BYTES)..]);
        }
        let pieces = &pieces[..2 * under_way.len()];
        let sent = transport.try_send(to, pieces)?;
        self.sent(to, sent);
        Ok(sent)
    }

    /// Chooses the next frames, so many that a write is worth while and none of them waits long.
    fn gather(&mut self, to: usize) {
        let Self { peers, operations, part_bytes, .. } = self;
        let peer = &mut peers[to];
        let mut bytes: usize = peer.under_way.iter().map(Current::len).sum();
        while peer.under_way.len() < FRAMES_AT_ONCE && bytes < BYTES_AT_ONCE {
            let Some(queued) = peer.next_frame(*part_bytes) else { return };
            if let Body::Of(ticket, _) = &queued.body
                && let Some(Operation { kind: Kind::Send(send), .. }) = operations.get_mut(ticket)
            {
                send.begun = true;
            }
            let current = Current { head: queued.frame.encode(), queued, at: 0 };
            bytes += current.len();
            peer.under_way.push_back(current);
        }
    }

    /// What follows a head, if it is where it should be.
    fn payload<'a>(&'a self, body: &'a Body, mine: &Mine<'a>) -> Result<&'a [u8]> {
        match body {
            Body::None => Ok(&[]),
            Body::Text(text) => Ok(text),
            Body::Of(ticket, range) => match self.operations.get(ticket) {
                Some(Operation { kind: Kind::Send(send), .. }) => {
                    send.bytes(*ticket, range.clone(), mine.send)
                }
                _ => Err(misplaced()),
            },
        }
    }

    /// Takes note of what the transport has accepted.
    fn sent(&mut self, to: usize, mut bytes: usize) {
        while let Some(current) = self.peers[to].under_way.front_mut() {
            let left = current.len() - current.at;
            if bytes < left {
                current.at += bytes;
                self.peers[to].accepted += bytes as u64;
                return;
            }
            bytes -= left;
            let then = current.queued.then;
            self.peers[to].under_way.pop_front();
            self.peers[to].accepted += left as u64;
            self.frame_sent(to, then);
        }
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

//! Sends frames to peers.

use std::io::IoSlice;

use comm_core::{Result, Transport};

use super::operation::{Kind, Operation, misplaced};
use super::peer::{FrameBody, OnSent, PartialFrame};
use super::{CallerBuffers, ProgressEngine, RequestId};
use crate::point_to_point::frame::Frame;

/// The number of bytes that are sent to one peer before the next one's turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// The most frames in one write, and the number of bytes at which no more frames are added.
const FRAMES_AT_ONCE: usize = 8;
const BYTES_AT_ONCE: usize = 16 << 10;

impl ProgressEngine {
    /// Sends frames to a peer, up to the limit of a turn. Returns whether any bytes were sent.
    pub(super) fn flush(
        &mut self,
        transport: &mut dyn Transport,
        to: usize,
        caller: &CallerBuffers<'_>,
    ) -> Result<bool> {
        let mut left = BYTES_PER_TURN;
        while left > 0 && self.peers[to].is_alive() && self.peers[to].has_frames() {
            let sent = self.send_some(transport, to, caller)?;
            if sent == 0 {
                break;
            }
            left = left.saturating_sub(sent);
        }
        let released = !self.peers[to].unreleased.is_empty() && self.release(transport, to);
        Ok(left < BYTES_PER_TURN || released)
    }

    /// Sends once, directly from the location of the bytes.
    fn send_some(
        &mut self,
        transport: &mut dyn Transport,
        to: usize,
        caller: &CallerBuffers<'_>,
    ) -> Result<usize> {
        self.gather(to);
        let mut pieces = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
        let in_flight = &self.peers[to].in_flight;
        for (current, pieces) in in_flight.iter().zip(pieces.chunks_exact_mut(2)) {
            let payload = self.payload(&current.queued.body, caller)?;
            pieces[0] = IoSlice::new(&current.head[current.at.min(Frame::BYTES)..]);
            pieces[1] = IoSlice::new(&payload[current.at.saturating_sub(Frame::BYTES)..]);
        }
        let pieces = &pieces[..2 * in_flight.len()];
        let sent = transport.try_send(to, pieces)?;
        self.sent(to, sent);
        Ok(sent)
    }

    /// Selects the next frames, no more than one write takes, so that frames queued later do not
    /// wait long.
    fn gather(&mut self, to: usize) {
        let Self { peers, operations, part_bytes, .. } = self;
        let peer = &mut peers[to];
        let mut bytes: usize = peer.in_flight.iter().map(PartialFrame::len).sum();
        while peer.in_flight.len() < FRAMES_AT_ONCE && bytes < BYTES_AT_ONCE {
            let Some(queued) = peer.next_frame(*part_bytes) else { return };
            if let FrameBody::Of(request, _) = &queued.body
                && let Some(Operation { kind: Kind::Send(send), .. }) = operations.get_mut(request)
            {
                send.begun = true;
            }
            let current = PartialFrame { head: queued.frame.encode(), queued, at: 0 };
            bytes += current.len();
            peer.in_flight.push_back(current);
        }
    }

    /// Returns the bytes that follow the head of a frame.
    fn payload<'a>(&'a self, body: &'a FrameBody, caller: &CallerBuffers<'a>) -> Result<&'a [u8]> {
        match body {
            FrameBody::None => Ok(&[]),
            FrameBody::Text(text) => Ok(text),
            FrameBody::Of(request, range) => match self.operations.get(request) {
                Some(Operation { kind: Kind::Send(send), .. }) => {
                    send.bytes(*request, range.clone(), caller.send)
                }
                _ => Err(misplaced()),
            },
        }
    }

    /// Records the bytes that the transport has accepted.
    fn sent(&mut self, to: usize, mut bytes: usize) {
        while let Some(current) = self.peers[to].in_flight.front_mut() {
            let left = current.len() - current.at;
            if bytes < left {
                current.at += bytes;
                self.peers[to].accepted += bytes as u64;
                return;
            }
            bytes -= left;
            let then = current.queued.then;
            self.peers[to].in_flight.pop_front();
            self.peers[to].accepted += left as u64;
            self.frame_sent(to, then);
        }
    }

    fn frame_sent(&mut self, to: usize, then: OnSent) {
        let peer = &mut self.peers[to];
        match then {
            OnSent::Nothing => {}
            OnSent::Received(request) => self.end_received(request),
            OnSent::Continue(transfer) => peer.outgoing_transfers.push_back(transfer),
            // The transport may still read the memory.
            OnSent::Sent(request) => peer.unreleased.push_back((peer.accepted, request)),
        }
    }

    /// Ends sends whose memory the transport has released.
    fn release(&mut self, transport: &dyn Transport, to: usize) -> bool {
        let released = transport.released(to);
        let mut moved = false;
        while let Some((position, request)) = self.first_unreleased(to)
            && position <= released
        {
            self.peers[to].unreleased.pop_front();
            self.end(request, Ok(None));
            moved = true;
        }
        moved
    }

    fn first_unreleased(&self, to: usize) -> Option<(u64, RequestId)> {
        self.peers[to].unreleased.front().copied()
    }
}

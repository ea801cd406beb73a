//! The state of one peer: its outgoing and incoming frames, and whether it is alive.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use comm_core::Loss;

use super::operation::RequestId;
use crate::point_to_point::frame::{CREDIT, Frame};

/// The body after the head of a frame.
#[derive(Debug, Clone)]
pub(crate) enum FrameBody {
    None,
    /// A range of a send's bytes.
    Of(RequestId, Range<usize>),
    Text(Vec<u8>),
}

/// The action to take once a frame has been sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OnSent {
    Nothing,
    /// The send is complete.
    Sent(RequestId),
    /// The transfer continues.
    Continue(OutgoingTransfer),
    /// The receive of a message without payload is complete.
    Received(RequestId),
}

/// A frame that waits to be sent.
#[derive(Debug, Clone)]
pub(crate) struct QueuedFrame {
    pub(crate) frame: Frame,
    pub(crate) body: FrameBody,
    pub(crate) then: OnSent,
}

impl QueuedFrame {
    pub(crate) const fn bare(frame: Frame) -> Self {
        Self { frame, body: FrameBody::None, then: OnSent::Nothing }
    }
}

/// A frame that is being sent.
#[derive(Debug, Clone)]
pub(crate) struct PartialFrame {
    pub(crate) queued: QueuedFrame,
    pub(crate) head: [u8; Frame::BYTES],
    /// The number of bytes of head and body that have been sent.
    pub(crate) at: usize,
}

impl PartialFrame {
    /// Returns the number of bytes of head and body.
    pub(crate) fn len(&self) -> usize {
        let body = match &self.queued.body {
            FrameBody::None => 0,
            FrameBody::Of(_, range) => range.len(),
            FrameBody::Text(text) => text.len(),
        };
        Frame::BYTES + body
    }
}

/// A message that is sent in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutgoingTransfer {
    pub(crate) send: RequestId,
    pub(crate) id: u64,
    pub(crate) done: usize,
    pub(crate) length: usize,
}

/// A message that is received in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IncomingTransfer {
    pub(crate) receive: RequestId,
    pub(crate) done: usize,
    pub(crate) length: usize,
}

/// The destination of the payload of an eager message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination {
    Receive(RequestId),
    Message(RequestId),
}

/// The part of the stream that is being read.
#[derive(Debug, Clone)]
pub(crate) enum ReadState {
    Head { have: usize },
    Eager { into: Destination, done: usize, length: usize },
    Part { id: u64, left: usize },
    Text { text: Vec<u8>, have: usize, of: Report },
}

impl ReadState {
    /// Whether the next byte is the first one of a frame.
    pub(crate) const fn is_between_frames(&self) -> bool {
        matches!(self, Self::Head { have: 0 })
    }
}

/// The event that a text describes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Report {
    /// This rank aborted all messages of the group.
    Aborted { by: usize },
    /// This rank died.
    Lost { rank: usize },
}

#[derive(Debug, Clone)]
pub(crate) struct PeerState {
    /// The reason why nothing more arrives from it.
    pub(crate) loss: Option<Loss>,
    /// The rank whose death it reported, and the text of the report: the cause if the peer then
    /// leaves.
    pub(crate) reported_death: Option<(usize, String)>,
    /// The number of operations that involve it.
    pub(crate) pending: usize,

    /// Whether nothing more can be sent to it.
    pub(crate) is_send_closed: bool,

    /// Frames that are sent next. The first of them may have been sent partly.
    pub(crate) in_flight: VecDeque<PartialFrame>,
    /// Whole frames in order: eager messages, control frames and reports.
    pub(crate) queue: VecDeque<QueuedFrame>,
    /// Messages that are sent in parts, in round-robin order.
    pub(crate) outgoing_transfers: VecDeque<OutgoingTransfer>,
    /// The number of bytes sent since the last part.
    pub(crate) since_part: usize,
    /// The number of bytes that the transport has accepted.
    pub(crate) accepted: u64,
    /// Sends whose bytes were all accepted, and the position at which their memory is released.
    pub(crate) unreleased: VecDeque<(u64, RequestId)>,
    /// Announced sends for which the peer has not sent a CTS.
    pub(crate) sent_rts: HashMap<u64, RequestId>,
    /// Sends that may not be announced yet.
    pub(crate) unqueued: VecDeque<RequestId>,
    pub(crate) next_id: u64,
    /// The credit in use.
    pub(crate) spent: u64,

    pub(crate) head: [u8; Frame::BYTES],
    pub(crate) reading: ReadState,
    /// The number of sends that have left messages unread for which an operation may wait.
    pub(crate) unread_sends: u32,
    /// Whether the last payload was short, so that a whole message is probably next.
    pub(crate) expects_short: bool,
    /// Messages that the peer announced and no receive has matched, keyed by the peer's ids.
    pub(crate) received_rts: HashMap<u64, RequestId>,
    /// Messages for which this rank has sent a CTS.
    pub(crate) incoming_transfers: HashMap<u64, IncomingTransfer>,
    /// The credit that the peer has used at this rank.
    pub(crate) peer_spent: u64,
    /// The part of it that can be returned.
    pub(crate) returnable: u64,
}

impl PeerState {
    pub(crate) fn new() -> Self {
        Self {
            loss: None,
            reported_death: None,
            pending: 0,
            is_send_closed: false,
            in_flight: VecDeque::new(),
            queue: VecDeque::new(),
            outgoing_transfers: VecDeque::new(),
            since_part: 0,
            accepted: 0,
            unreleased: VecDeque::new(),
            sent_rts: HashMap::new(),
            unqueued: VecDeque::new(),
            next_id: 0,
            spent: 0,
            head: [0; Frame::BYTES],
            reading: ReadState::Head { have: 0 },
            unread_sends: 0,
            expects_short: true,
            received_rts: HashMap::new(),
            incoming_transfers: HashMap::new(),
            peer_spent: 0,
            returnable: 0,
        }
    }

    pub(crate) const fn is_alive(&self) -> bool {
        self.loss.is_none()
    }

    /// Returns whether bytes wait to be sent or released.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.is_send_closed && (self.has_frames() || !self.unreleased.is_empty())
    }

    /// Returns whether frames wait to be sent.
    pub(crate) fn has_frames(&self) -> bool {
        !self.is_send_closed
            && (!self.in_flight.is_empty() || !self.queue.is_empty() || !self.outgoing_transfers.is_empty())
    }

    /// Returns the frame to send next: queued frames in order, and a part of a large message after
    /// every `part_bytes` bytes of them, so that small messages cannot starve large ones.
    pub(crate) fn next_frame(&mut self, part_bytes: usize) -> Option<QueuedFrame> {
        if (self.outgoing_transfers.is_empty() || self.since_part < part_bytes)
            && let Some(queued) = self.queue.pop_front()
        {
            self.since_part += Frame::BYTES;
            if let FrameBody::Of(_, range) = &queued.body {
                self.since_part += range.len();
            }
            return Some(queued);
        }
        let transfer = self.outgoing_transfers.pop_front()?;
        self.since_part = 0;
        let OutgoingTransfer { send, id, done, length } = transfer;
        let end = length.min(done.saturating_add(part_bytes));
        let then = if end == length {
            OnSent::Sent(send)
        } else {
            OnSent::Continue(OutgoingTransfer { done: end, ..transfer })
        };
        let frame = Frame::Data { length: (end - done) as u64, id };
        Some(QueuedFrame { frame, body: FrameBody::Of(send, done..end), then })
    }

    /// Records that memory of messages was freed, and returns credit once there is enough to be
    /// worth a frame.
    pub(crate) fn return_credit(&mut self, cost: u64) {
        self.returnable += cost;
        if self.returnable >= CREDIT / 4 {
            let amount = std::mem::take(&mut self.returnable);
            self.peer_spent = self.peer_spent.saturating_sub(amount);
            self.queue.push_back(QueuedFrame::bare(Frame::Credit { amount }));
        }
    }

    /// Stops sending, because the stream broke or ends in the middle of a frame.
    pub(crate) fn close_send(&mut self) {
        self.is_send_closed = true;
        self.in_flight.clear();
        self.queue.clear();
    }

    /// Drops all outgoing frames and the state of the frame that is being read.
    pub(crate) fn reset(&mut self) {
        let (loss, reported_death, pending) = (self.loss.take(), self.reported_death.take(), self.pending);
        *self = Self { loss, reported_death, pending, ..Self::new() };
    }
}

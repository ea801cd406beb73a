//! What is known of one peer: what is to be said to it, what it is saying, and whether it is still there.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use comm_core::Loss;

use super::operation::Ticket;
use crate::point_to_point::frame::{CREDIT, Frame};

/// What follows the head of a frame.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    None,
    /// Some of a send's bytes.
    Of(Ticket, Range<usize>),
    Text(Vec<u8>),
}

/// What the end of a frame means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    Nothing,
    /// The send has gone out whole.
    Sent(Ticket),
    /// There is more of this transfer.
    Continue(Transfer),
    /// The receive has asked for a message without payload, and that is all.
    Received(Ticket),
}

/// A frame that waits to be sent, or of which a part has been sent.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    pub(crate) frame: Frame,
    pub(crate) body: Body,
    pub(crate) then: Then,
}

impl Queued {
    pub(crate) const fn bare(frame: Frame) -> Self {
        Self { frame, body: Body::None, then: Then::Nothing }
    }
}

/// A frame that is being sent.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) queued: Queued,
    pub(crate) head: [u8; Frame::BYTES],
    /// How many bytes of head and body have been sent.
    pub(crate) at: usize,
}

impl Current {
    /// How many bytes head and body have.
    pub(crate) fn len(&self) -> usize {
        let body = match &self.queued.body {
            Body::None => 0,
            Body::Of(_, range) => range.len(),
            Body::Text(text) => text.len(),
        };
        Frame::BYTES + body
    }
}

/// A message that goes out in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) send: Ticket,
    pub(crate) id: u64,
    pub(crate) done: usize,
    pub(crate) length: usize,
}

/// A message that comes in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) receive: Ticket,
    pub(crate) done: usize,
    pub(crate) length: usize,
}

/// Where the payload of a message goes that comes whole.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Into {
    Receive(Ticket),
    Message(Ticket),
}

/// What the peer is in the middle of saying.
#[derive(Debug)]
pub(crate) enum Reading {
    Head { have: usize },
    Eager { into: Into, done: usize, length: usize },
    Part { id: u64, left: usize },
    Text { text: Vec<u8>, have: usize, of: Report },
}

/// What a text explains.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Report {
    /// This rank ended all messages.
    Aborted { by: usize },
    /// This rank died.
    Lost { rank: usize },
}

#[derive(Debug)]
pub(crate) struct Peer {
    /// Why nothing more comes from it.
    pub(crate) loss: Option<Loss>,
    /// The rank that it saw die, and how that showed: why it leaves, if it does.
    pub(crate) witnessed: Option<(usize, String)>,
    /// How many operations have to do with it.
    pub(crate) involved: usize,

    /// Whether nothing can be said to it any more.
    pub(crate) is_mute: bool,

    /// Frames that were chosen to go out next, of the first of which a part may have been sent.
    pub(crate) under_way: VecDeque<Current>,
    /// Whole frames in order: messages, announcements, and what is said about others.
    pub(crate) queue: VecDeque<Queued>,
    /// Messages that go out in parts, by turns.
    pub(crate) transfers: VecDeque<Transfer>,
    /// How many bytes went out since the last part.
    pub(crate) since_part: usize,
    /// How many bytes the transport has accepted.
    pub(crate) accepted: u64,
    /// Sends that have gone out whole, and the position at which their memory is released.
    pub(crate) unreleased: VecDeque<(u64, Ticket)>,
    /// Announced sends that the peer has not asked for.
    pub(crate) announced: HashMap<u64, Ticket>,
    /// Sends that may not even be announced yet.
    pub(crate) held_back: VecDeque<Ticket>,
    pub(crate) next_id: u64,
    /// How much of the credit is spent.
    pub(crate) spent: u64,

    pub(crate) head: [u8; Frame::BYTES],
    pub(crate) reading: Reading,
    /// Messages that the peer announced and nobody has received, by the peer's numbers.
    pub(crate) offered: HashMap<u64, Ticket>,
    /// Messages that were asked for.
    pub(crate) asked: HashMap<u64, Asked>,
    /// How much of the credit that the peer has from this rank is spent.
    pub(crate) held: u64,
    /// How much of that can be given back.
    pub(crate) owed: u64,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            loss: None,
            witnessed: None,
            involved: 0,
            is_mute: false,
            under_way: VecDeque::new(),
            queue: VecDeque::new(),
            transfers: VecDeque::new(),
            since_part: 0,
            accepted: 0,
            unreleased: VecDeque::new(),
            announced: HashMap::new(),
            held_back: VecDeque::new(),
            next_id: 0,
            spent: 0,
            head: [0; Frame::BYTES],
            reading: Reading::Head { have: 0 },
            offered: HashMap::new(),
            asked: HashMap::new(),
            held: 0,
            owed: 0,
        }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.loss.is_none()
    }

    /// Whether something waits to go out, or to be released.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.is_mute && (self.has_frames() || !self.unreleased.is_empty())
    }

    /// Whether something waits to go out.
    pub(crate) fn has_frames(&self) -> bool {
        !self.is_mute && (!self.under_way.is_empty() || !self.queue.is_empty() || !self.transfers.is_empty())
    }

    /// The frame to send next: whole ones in order and, so that they cannot hold up large messages for good, a part of
    /// one after as many bytes as a part has.
    pub(crate) fn next_frame(&mut self, part_bytes: usize) -> Option<Queued> {
        if (self.transfers.is_empty() || self.since_part < part_bytes)
            && let Some(queued) = self.queue.pop_front()
        {
            self.since_part += Frame::BYTES;
            if let Body::Of(_, range) = &queued.body {
                self.since_part += range.len();
            }
            return Some(queued);
        }
        let transfer = self.transfers.pop_front()?;
        self.since_part = 0;
        let Transfer { send, id, done, length } = transfer;
        let end = length.min(done.saturating_add(part_bytes));
        let then =
            if end == length { Then::Sent(send) } else { Then::Continue(Transfer { done: end, ..transfer }) };
        let frame = Frame::Data { length: (end - done) as u64, id };
        Some(Queued { frame, body: Body::Of(send, done..end), then })
    }

    /// Takes note that memory for messages was freed. It is given back in lots, to be worth a frame.
    pub(crate) fn freed(&mut self, cost: u64) {
        self.owed += cost;
        if self.owed >= CREDIT / 4 {
            let amount = std::mem::take(&mut self.owed);
            self.held = self.held.saturating_sub(amount);
            self.queue.push_back(Queued::bare(Frame::Credit { amount }));
        }
    }

    /// Its stream broke: nothing more can be said.
    pub(crate) fn mute(&mut self) {
        self.is_mute = true;
        self.under_way.clear();
        self.queue.clear();
    }

    /// Forgets everything that was to be said, and what was being heard.
    pub(crate) fn forget(&mut self) {
        let (loss, witnessed, involved) = (self.loss.take(), self.witnessed.take(), self.involved);
        *self = Self { loss, witnessed, involved, ..Self::new() };
    }
}

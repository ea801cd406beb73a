//! Short messages that move at once, without an operation: the common case of a send to a peer that
//! keeps up, and of a receive whose message arrives first of all.
//!
//! An operation costs several times as much as the transfer of a short message. It is needed only
//! to wait, to keep an order among operations, and to report errors. So all other cases are left to
//! operations, and nothing has changed before that is known.

use std::io::IoSlice;
use std::time::Duration;

use comm_core::{DType, Error, HostView, Received, RecvBuf, Shape, Source, TagMatch, Transport};

use super::operation::{Matched, RecvRequest, RequestId, SendRequest};
use super::peer::{Destination, FrameBody, OnSent, PartialFrame, PeerState, QueuedFrame, ReadState};
use super::{CallerBuffers, Kind, ProgressEngine, credit_cost};
use crate::point_to_point::frame::{CREDIT, Frame};
use crate::point_to_point::matching::Envelope;

/// The longest message that is sent at once, as a multiple of the longest one that an operation
/// sends eagerly. Its rendezvous would delay it, while one of several messages is announced as
/// others are copied.
const AT_ONCE: usize = 4;

/// The number of sends that find messages for which an operation may wait until one reads them.
const UNREAD_SENDS_MAX: u32 = 16;

/// A message cannot be received without an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedsOperation;

/// A message whose first bytes have been received, without its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartlyReceived {
    envelope: Envelope,
    dtype: DType,
    length: usize,
    done: usize,
}

/// The number of bytes of an eager message that the transport has accepted, with the head. If these
/// are all, it still reads the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartlySent {
    frame: Frame,
    accepted: usize,
}

impl ProgressEngine {
    /// Sends a message at once if it is eager and no other message to the peer is under way.
    ///
    /// # Errors
    /// If the message needs an operation: the part that was sent, if any.
    pub(crate) fn send_at_once(
        &mut self,
        transport: &mut dyn Transport,
        (to, tag): (usize, u64),
        message: HostView<'_>,
    ) -> Result<(), Option<PartlySent>> {
        let (length, dtype) = (message.bytes().len(), message.dtype());
        let is_peer = to < self.group.size() && to != self.group.rank();
        let is_alone = self.operations.is_empty();
        let at_once_max = if is_alone { self.eager_bytes.saturating_mul(AT_ONCE) } else { self.eager_bytes };
        if !is_peer || length > at_once_max || self.poison.is_some() {
            return Err(None);
        }
        let peer = &self.peers[to];
        if !peer.is_alive() || !peer.is_send_idle() || peer.spent + credit_cost(length) > CREDIT {
            return Err(None);
        }
        let frame = Frame::Eager { tag, dtype, length: length as u64 };
        let head = frame.encode();
        let pieces = [IoSlice::new(&head), IoSlice::new(message.bytes())];
        let accepted = match transport.try_send(to, &pieces) {
            Ok(0) | Err(_) => return Err(None),
            Ok(accepted) => accepted,
        };
        let peer = &mut self.peers[to];
        peer.spent += credit_cost(length);
        peer.accepted += accepted as u64;
        if accepted < Frame::BYTES + length || transport.released(to) < peer.accepted {
            return Err(Some(PartlySent { frame, accepted }));
        }
        self.read_after_send(transport, to);
        Ok(())
    }

    /// Reads the bytes that have arrived from a peer, so that a rank that only sends gets credit
    /// and hears of failures. Leaves messages to the calls that receive them, or to one of several
    /// sends if an operation may wait for them.
    ///
    /// This is done after a send, because it would delay the message.
    fn read_after_send(&mut self, transport: &mut dyn Transport, peer: usize) {
        let state = &mut self.peers[peer];
        match transport.fill_buf(peer, Frame::BYTES) {
            Ok(filled) if filled.is_empty() => return,
            Ok(filled) if state.reading.is_between_frames() && begins_message(filled) => {
                let is_awaited = state.pending + self.any_source > 0;
                state.unread_sends += u32::from(is_awaited);
                if state.unread_sends < UNREAD_SENDS_MAX {
                    return;
                }
            }
            Ok(_) | Err(_) => {}
        }
        state.unread_sends = 0;
        let result = self.read(transport, peer, &mut CallerBuffers::default());
        self.record(peer, result);
    }

    /// Begins to send a message, or its rest after `partly`.
    pub(crate) fn send_rest(
        &mut self,
        request: RequestId,
        mut send: SendRequest,
        timeout: Duration,
        partly: Option<PartlySent>,
        caller: &CallerBuffers<'_>,
    ) {
        let Some(PartlySent { frame, accepted }) = partly else {
            return self.send(request, send, timeout, caller);
        };
        let (to, length) = (send.to, send.length);
        send.begun = true;
        self.begin(request, Kind::Send(send), timeout);
        let peer = &mut self.peers[to];
        if accepted == Frame::BYTES + length {
            peer.unreleased.push_back((peer.accepted, request));
            return;
        }
        let queued =
            QueuedFrame { frame, body: FrameBody::Of(request, 0..length), then: OnSent::Sent(request) };
        peer.in_flight.push_back(PartialFrame { head: frame.encode(), queued, at: accepted });
    }

    /// Ends all messages, because the rest of one after `partly` cannot be sent.
    pub(crate) fn abandon(&mut self, to: usize, PartlySent { frame, accepted }: PartlySent, error: Error) {
        let queued = QueuedFrame::bare(frame);
        self.peers[to].in_flight.push_back(PartialFrame { head: frame.encode(), queued, at: accepted });
        self.end_all(error);
    }

    /// Receives the bytes of a message from the [only source](Self::only_source) that have arrived;
    /// `partly` keeps their number. Returns the message once it is complete.
    #[inline]
    pub(crate) fn recv_at_once(
        &mut self,
        transport: &mut dyn Transport,
        from: (usize, TagMatch),
        (buffer, dtype): (&mut [u8], DType),
        partly: &mut Option<PartlyReceived>,
    ) -> Result<Option<Received>, NeedsOperation> {
        if partly.is_none() {
            *partly = self.recv_first(transport, from, (buffer, dtype))?;
        }
        match partly {
            Some(message) => self.recv_more(transport, message, buffer),
            None => Ok(None),
        }
    }

    /// Receives the first bytes of the next message of a peer. Returns `None` if nothing has
    /// arrived.
    #[inline]
    fn recv_first(
        &mut self,
        transport: &mut dyn Transport,
        (from, wanted): (usize, TagMatch),
        (buffer, dtype): (&mut [u8], DType),
    ) -> Result<Option<PartlyReceived>, NeedsOperation> {
        let filled = transport.fill_buf(from, Frame::BYTES + buffer.len()).map_err(|_| NeedsOperation)?;
        if filled.is_empty() {
            return Ok(None);
        }
        let (tag, length) = Frame::read_eager(filled, dtype).ok_or(NeedsOperation)?;
        let length = length as usize;
        let is_wanted = [TagMatch::Any, TagMatch::Is(tag)].contains(&wanted);
        let peer = &mut self.peers[from];
        let has_credit = peer.peer_spent + credit_cost(length) <= CREDIT;
        if !is_wanted || !has_credit || length > buffer.len() {
            return Err(NeedsOperation);
        }
        let done = filled.skip(Frame::BYTES).copy_to(&mut buffer[..length]);
        transport.consume(from, Frame::BYTES + done).map_err(|_| NeedsOperation)?;
        peer.peer_spent += credit_cost(length);
        Ok(Some(PartlyReceived { envelope: Envelope { source: from, tag }, dtype, length, done }))
    }

    /// Receives bytes of a message that have arrived. Returns the message once it is complete.
    fn recv_more(
        &mut self,
        transport: &mut dyn Transport,
        message: &mut PartlyReceived,
        buffer: &mut [u8],
    ) -> Result<Option<Received>, NeedsOperation> {
        let PartlyReceived { envelope: Envelope { source, tag }, dtype, length, .. } = *message;
        while message.done < length {
            let rest = &mut buffer[message.done..length];
            match transport.try_recv(source, rest).map_err(|_| NeedsOperation)? {
                0 => return Ok(None),
                received => message.done += received,
            }
        }
        let peer = &mut self.peers[source];
        peer.return_credit(credit_cost(length));
        if peer.has_outgoing()
            && let Err(Error::PeerLost { .. }) = self.flush(transport, source, &CallerBuffers::default())
        {
            self.peers[source].close_send();
        }
        Ok(Some(Received::new(source, tag, dtype, length / dtype.size())))
    }

    /// Begins to receive a message, or its rest after `partly`.
    pub(crate) fn recv_rest(
        &mut self,
        request: RequestId,
        mut recv: RecvRequest,
        timeout: Duration,
        partly: Option<PartlyReceived>,
        caller: &mut CallerBuffers<'_>,
    ) {
        let Some(PartlyReceived { envelope, length, done, .. }) = partly else {
            return self.recv(request, recv, timeout, caller);
        };
        recv.matched = Some(Matched { envelope, length });
        self.begin(request, Kind::Recv(recv), timeout);
        self.peers[envelope.source].reading =
            ReadState::Eager { into: Destination::Receive(request), done, length };
    }

    /// Returns the peer whose next message can only be for a receive that begins now: there is no
    /// other operation, and no earlier message.
    pub(crate) fn only_source(&self, from: Source) -> Option<usize> {
        let Source::Rank(from) = from else { return None };
        let is_peer = from < self.group.size() && from != self.group.rank();
        let is_next = is_peer && self.operations.is_empty() && self.messages.is_empty();
        let peer = is_next.then(|| &self.peers[from])?;
        let is_usable = self.poison.is_none() && peer.is_alive();
        (is_usable && peer.reading.is_between_frames()).then_some(from)
    }
}

impl PeerState {
    /// Returns whether no message to the peer is under way or waits for its turn.
    fn is_send_idle(&self) -> bool {
        !self.is_send_closed && !self.has_frames() && self.unqueued.is_empty() && self.unreleased.is_empty()
    }
}

/// Returns whether these are the first bytes of a message, which its receive reads.
fn begins_message(bytes: RecvBuf<'_>) -> bool {
    matches!(Frame::read(bytes), Some(Frame::Eager { .. } | Frame::Rts { .. }))
}

#[cfg(test)]
mod tests;

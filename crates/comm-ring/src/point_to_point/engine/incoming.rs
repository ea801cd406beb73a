//! Receives frames from peers and handles them.

use comm_core::{During, Error, Loss, Result, Transport};

use super::operation::{Kind, Operation, misplaced};
use super::peer::{Destination, OutgoingTransfer, ReadState, Report};
use super::{CallerBuffers, ProgressEngine, RequestId, UnexpectedBody, credit_cost};
use crate::executor::recv_bypassing;
use crate::point_to_point::frame::{CREDIT, Frame, RTS_MAX};
use crate::point_to_point::matching::Envelope;

/// The number of bytes that are read from one peer before the next one's turn.
const BYTES_PER_TURN: usize = 1 << 20;

/// The longest message, with its head, that is received in one step if it has arrived completely.
const WHOLE_MAX: usize = 4 << 10;

impl ProgressEngine {
    /// Reads bytes that have arrived from a peer, up to the limit of a turn. Returns whether there
    /// were any.
    pub(super) fn read(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        caller: &mut CallerBuffers<'_>,
    ) -> Result<bool> {
        let mut left = BYTES_PER_TURN;
        while left > 0 && self.peers[from].is_alive() && self.poison.is_none() {
            let received = self.read_some(transport, from, caller)?;
            if received == 0 {
                break;
            }
            left = left.saturating_sub(received);
        }
        Ok(left < BYTES_PER_TURN)
    }

    /// Receives a short eager message that has arrived completely and that a receive waits for, in
    /// one step. Returns the number of bytes, or `None` if the next bytes are to be read otherwise.
    fn read_whole(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        caller: &mut CallerBuffers<'_>,
    ) -> Result<Option<usize>> {
        let peer = &self.peers[from];
        if !peer.expects_short || !peer.reading.is_between_frames() {
            return Ok(None);
        }
        let filled = transport.fill_buf(from, WHOLE_MAX)?;
        if filled.is_empty() {
            return Ok(Some(0));
        }
        let Some(Frame::Eager { tag, dtype, length }) = Frame::read(filled) else { return Ok(None) };
        let (length, payload) = (length as usize, filled.skip(Frame::BYTES));
        if length > payload.len() || peer.peer_spent + credit_cost(length) > CREDIT {
            return Ok(None);
        }
        let envelope = Envelope { source: from, tag };
        let Some(receive) = self.match_receive(envelope, dtype, length) else { return Ok(None) };
        let into = Destination::Receive(receive);
        // Without a buffer, the payload is read otherwise.
        let done = buffer_of(self, into, 0..length, caller).map_or(0, |buffer| payload.copy_to(buffer));
        transport.consume(from, Frame::BYTES + done)?;
        let peer = &mut self.peers[from];
        peer.peer_spent += credit_cost(length);
        if done < length {
            peer.reading = ReadState::Eager { into, done, length };
        } else {
            peer.return_credit(credit_cost(length));
            self.end_received(receive);
        }
        Ok(Some(Frame::BYTES + done))
    }

    /// Reads once, directly into the destination of the bytes.
    fn read_some(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        caller: &mut CallerBuffers<'_>,
    ) -> Result<usize> {
        if let Some(received) = self.read_whole(transport, from, caller)? {
            return Ok(received);
        }
        let peer = &mut self.peers[from];
        match &mut peer.reading {
            ReadState::Head { have } => {
                let received = transport.try_recv(from, &mut peer.head[*have..])?;
                *have += received;
                if *have == Frame::BYTES {
                    peer.reading = ReadState::Head { have: 0 };
                    let frame = Frame::decode(&peer.head)
                        .ok_or_else(|| protocol_error(from, "invalid frame header"))?;
                    if let Frame::Eager { length, .. } | Frame::Data { length, .. } = frame {
                        peer.expects_short = length <= (WHOLE_MAX - Frame::BYTES) as u64;
                    }
                    self.handle_frame(from, frame)?;
                }
                Ok(received)
            }
            ReadState::Eager { into, done, length } => {
                let (into, start, length) = (*into, *done, *length);
                let received = match buffer_of(self, into, start..length, caller) {
                    Ok(dst) => transport.try_recv(from, dst)?,
                    Err(error) => return Ok(self.read_nothing(into, error)),
                };
                let done = start + received;
                self.peers[from].reading = ReadState::Eager { into, done, length };
                if done == length {
                    self.eager_arrived(from, into, length, caller);
                }
                Ok(received)
            }
            ReadState::Part { id, left } => {
                let (id, left) = (*id, *left);
                let Some(transfer) = peer.incoming_transfers.get(&id).copied() else {
                    return Err(protocol_error(from, "data for an unknown message"));
                };
                let into = Destination::Receive(transfer.receive);
                let received = match buffer_of(self, into, transfer.done..transfer.done + left, caller) {
                    Ok(dst) if transfer.length > transport.cached_bytes() => {
                        recv_bypassing(transport, from, dst)?
                    }
                    Ok(dst) => transport.try_recv(from, dst)?,
                    Err(error) => return Ok(self.read_nothing(into, error)),
                };
                self.part_arrived(from, id, left, received);
                Ok(received)
            }
            ReadState::Text { text, have, of } => {
                let received = transport.try_recv(from, &mut text[*have..])?;
                *have += received;
                if *have == text.len() {
                    let (of, text) = (*of, String::from_utf8_lossy(text).into_owned());
                    peer.reading = ReadState::Head { have: 0 };
                    self.handle_report(from, of, text);
                }
                Ok(received)
            }
        }
    }

    /// Handles incoming bytes for which there is no memory. Returns 0, the number of bytes read.
    fn read_nothing(&mut self, into: Destination, error: Error) -> usize {
        match into {
            Destination::Receive(receive) => self.fail_buffer(receive, error),
            Destination::Message(_) => self.end_all(error),
        }
        0
    }

    /// Handles the head of a frame.
    fn handle_frame(&mut self, from: usize, frame: Frame) -> Result<()> {
        let peer = &mut self.peers[from];
        match frame {
            Frame::Eager { tag, dtype, length } => {
                // Decoding the head has bounded the length, so it fits any integer.
                let length = length as usize;
                peer.peer_spent += credit_cost(length);
                if peer.peer_spent > CREDIT {
                    return Err(protocol_error(from, "a message that exceeds its credit"));
                }
                let envelope = Envelope { source: from, tag };
                let into = match self.match_receive(envelope, dtype, length) {
                    Some(receive) => Destination::Receive(receive),
                    None => Destination::Message(self.add_unexpected(
                        envelope,
                        dtype,
                        length,
                        UnexpectedBody::Arriving(Vec::new()),
                    )),
                };
                self.peers[from].reading = ReadState::Eager { into, done: 0, length };
                if length == 0 {
                    self.eager_arrived(from, into, 0, &mut CallerBuffers::default());
                }
            }
            Frame::Rts { tag, dtype, length, id } => {
                // Decoding the head has bounded the length to `usize`.
                let (envelope, length) = (Envelope { source: from, tag }, length as usize);
                if peer.received_rts.contains_key(&id) || peer.incoming_transfers.contains_key(&id) {
                    return Err(protocol_error(from, "a message with a duplicate id"));
                }
                if peer.received_rts.len() >= RTS_MAX {
                    return Err(protocol_error(from, "too many messages without a matching receive"));
                }
                match self.match_receive(envelope, dtype, length) {
                    Some(receive) => self.send_cts(from, id, receive, length),
                    None => {
                        let number = self.add_unexpected(envelope, dtype, length, UnexpectedBody::Rts(id));
                        self.peers[from].received_rts.insert(id, number);
                    }
                }
            }
            Frame::Cts { id } => {
                let Some(send) = peer.sent_rts.remove(&id) else {
                    return Err(protocol_error(from, "clear to send for an unknown message"));
                };
                self.handle_cts(from, id, send);
            }
            Frame::Data { length, id } => {
                let Some(transfer) = peer.incoming_transfers.get(&id) else {
                    return Err(protocol_error(from, "data for an unknown message"));
                };
                let left = usize::try_from(length).unwrap_or(usize::MAX);
                if left > transfer.length - transfer.done {
                    return Err(protocol_error(from, "more data than the announced length"));
                }
                peer.reading = ReadState::Part { id, left };
            }
            Frame::Credit { amount } => {
                let Some(spent) = peer.spent.checked_sub(amount) else {
                    return Err(protocol_error(from, "more credit than was in use"));
                };
                peer.spent = spent;
            }
            Frame::Goodbye => self.lose(from, Loss::Finished),
            Frame::Abort { length, by } => {
                let by = usize::try_from(by).ok().filter(|&by| by < self.group.size()).unwrap_or(from);
                self.expect_text(from, length, Report::Aborted { by });
            }
            Frame::Lost { length, rank } => match usize::try_from(rank) {
                Ok(rank) if rank < self.group.size() => {
                    self.expect_text(from, length, Report::Lost { rank });
                }
                _ => return Err(protocol_error(from, "report of a lost rank that is not in the group")),
            },
        }
        Ok(())
    }

    /// Expects the text of a report next. Decoding the head has bounded its length.
    fn expect_text(&mut self, from: usize, length: u64, of: Report) {
        if length == 0 {
            return self.handle_report(from, of, String::new());
        }
        self.peers[from].reading = ReadState::Text { text: vec![0; length as usize], have: 0, of };
    }

    /// Handles a report of a peer.
    fn handle_report(&mut self, from: usize, of: Report, text: String) {
        match of {
            Report::Aborted { by } => self.end_all(Error::Aborted { by, reason: text }),
            // This rank is alive, so a report of its death is wrong.
            Report::Lost { rank } if rank == self.group.rank() => {}
            Report::Lost { rank } => drop(self.peers[from].reported_death.get_or_insert((rank, text))),
        }
    }

    /// Completes an eager message.
    fn eager_arrived(
        &mut self,
        from: usize,
        into: Destination,
        length: usize,
        caller: &mut CallerBuffers<'_>,
    ) {
        self.peers[from].reading = ReadState::Head { have: 0 };
        match into {
            Destination::Receive(receive) => {
                self.free_message(from, length);
                self.end_received(receive);
            }
            Destination::Message(number) => {
                let Some(message) = self.messages.get_mut(&number) else { return };
                message.mark_arrived();
                let Some(receive) = message.receive else { return };
                if let Some(UnexpectedBody::Whole(bytes)) =
                    self.messages.remove(&number).map(|message| message.body)
                {
                    self.free_message(from, length);
                    self.deliver(receive, &bytes, caller);
                }
            }
        }
    }

    /// Records that bytes of a part of a message have arrived.
    fn part_arrived(&mut self, from: usize, id: u64, left: usize, received: usize) {
        let peer = &mut self.peers[from];
        let Some(transfer) = peer.incoming_transfers.get_mut(&id) else { return };
        transfer.done += received;
        peer.reading = if left > received {
            ReadState::Part { id, left: left - received }
        } else {
            ReadState::Head { have: 0 }
        };
        if transfer.done == transfer.length {
            let receive = transfer.receive;
            peer.incoming_transfers.remove(&id);
            self.end_received(receive);
        }
    }

    /// Starts the transfer of a message that a peer is ready to receive.
    fn handle_cts(&mut self, to: usize, id: u64, request: RequestId) {
        // Another message may be announced in its place.
        self.queue_sends(to);
        let Some(Operation { kind: Kind::Send(send), .. }) = self.operations.get_mut(&request) else {
            return;
        };
        send.begun = true;
        let length = send.length;
        if length == 0 {
            self.end(request, Ok(None));
        } else {
            self.peers[to].outgoing_transfers.push_back(OutgoingTransfer {
                send: request,
                id,
                done: 0,
                length,
            });
        }
    }
}

/// Returns the memory for incoming bytes.
fn buffer_of<'a>(
    engine: &'a mut ProgressEngine,
    into: Destination,
    range: std::ops::Range<usize>,
    caller: &'a mut CallerBuffers<'_>,
) -> Result<&'a mut [u8]> {
    match into {
        Destination::Receive(receive) => match engine.operations.get_mut(&receive) {
            Some(Operation { kind: Kind::Recv(recv), .. }) => recv.bytes_mut(receive, range, caller),
            _ => Err(misplaced()),
        },
        Destination::Message(number) => {
            match engine.messages.get_mut(&number).map(|message| &mut message.body) {
                Some(UnexpectedBody::Arriving(bytes)) => {
                    bytes.resize(range.end, 0);
                    bytes.get_mut(range).ok_or_else(misplaced)
                }
                _ => Err(misplaced()),
            }
        }
    }
}

fn protocol_error(peer: usize, what: &str) -> Error {
    let loss = Loss::Protocol(what.to_owned());
    Error::PeerLost { peer, during: During::Receiving, loss }
}

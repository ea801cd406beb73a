//! Begins operations.

use std::time::Duration;

use comm_core::{Error, Invalid, Loss, Received, Result, Source, copy};

use super::operation::{Kind, Operation, awaiting};
use super::peer::{FrameBody, IncomingTransfer, OnSent, QueuedFrame};
use super::{
    CallerBuffers, Payload, ProgressEngine, RecvBuffer, RecvRequest, RequestId, SendRequest, UnexpectedBody,
    UnexpectedMessage, credit_cost, is_pending,
};
use crate::point_to_point::frame::{CREDIT, Frame};
use crate::point_to_point::matching::{Envelope, MatchKey};

impl ProgressEngine {
    /// Begins a send. Its outcome reports all errors.
    pub(crate) fn send(
        &mut self,
        request: RequestId,
        send: SendRequest,
        timeout: Duration,
        caller: &CallerBuffers<'_>,
    ) {
        let to = send.to;
        self.begin(request, Kind::Send(send), timeout);
        let usable = self.check_rank(to).and_then(|()| self.check_usable());
        let result = usable.and_then(|()| match to == self.group.rank() {
            true => self.send_to_self(request, caller),
            false => {
                self.peers[to].unqueued.push_back(request);
                self.queue_sends(to);
                Ok(())
            }
        });
        if let Err(error) = result {
            self.end(request, Err(error));
        }
    }

    /// Begins a receive. Its outcome reports all errors.
    pub(crate) fn recv(
        &mut self,
        request: RequestId,
        recv: RecvRequest,
        timeout: Duration,
        caller: &mut CallerBuffers<'_>,
    ) {
        let key = recv.key;
        self.begin(request, Kind::Recv(recv), timeout);
        if let Err(error) = self.check_source(key) {
            return self.end(request, Err(error));
        }
        match self.matching.message_for(key) {
            Some(message) => self.match_message(message, request, caller),
            None => self.matching.add_receive(key, request),
        }
    }

    /// Begins to wait for a message without receiving it.
    pub(crate) fn probe(&mut self, request: RequestId, key: MatchKey, timeout: Duration) {
        self.begin(request, Kind::Probe(key), timeout);
        match self.check_source(key).map(|()| self.peek(key)) {
            Err(error) => self.end(request, Err(error)),
            Ok(Some(received)) => self.end(request, Ok(Some(received))),
            Ok(None) => drop(self.probes.insert(request)),
        }
    }

    /// Returns the message that a receive would match.
    pub(crate) fn peek(&self, key: MatchKey) -> Option<Received> {
        let message = self.messages.get(&self.matching.message_for(key)?)?;
        let Envelope { source, tag } = message.envelope;
        let len = message.length / message.dtype.size();
        Some(Received::new(source, tag, message.dtype, len))
    }

    /// Returns an error if the rank is out of range.
    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        let size = self.group.size();
        if rank < size { Ok(()) } else { Err(Invalid::Rank { rank, size }.into()) }
    }

    /// Returns an error if all operations have been ended.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(first.clone())))
    }

    /// Returns an error if no message can match the key any more. A message that has already
    /// arrived still can.
    pub(crate) fn check_source(&self, key: MatchKey) -> Result<()> {
        if let Source::Rank(rank) = key.from {
            self.check_rank(rank)?;
        }
        self.check_usable()?;
        if self.matching.message_for(key).is_some() {
            return Ok(());
        }
        match self.source_loss(key.from) {
            Some((peer, loss)) => Err(Error::PeerLost { peer, during: awaiting(key), loss }),
            None => Ok(()),
        }
    }

    /// Returns the lost rank and its loss if no message can arrive from this source any more.
    pub(super) fn source_loss(&self, from: Source) -> Option<(usize, Loss)> {
        match from {
            Source::Rank(rank) => self.origin_of_loss(rank),
            Source::Any => {
                let lost = || self.group.peers().filter_map(|rank| self.origin_of_loss(rank));
                let died = lost().find(|(_, loss)| !matches!(loss, Loss::Finished));
                let alone = lost().count() + 1 == self.group.size();
                died.or_else(|| lost().next().filter(|_| alone))
            }
        }
    }

    fn send_to_self(&mut self, request: RequestId, caller: &CallerBuffers<'_>) -> Result<()> {
        let rank = self.group.rank();
        let (envelope, dtype, length) = match self.operations.get(&request) {
            Some(Operation { kind: Kind::Send(send), .. }) => (send.envelope(rank), send.dtype, send.length),
            _ => return Err(Error::Internal("a new send is unknown".into())),
        };
        if let Some(receive) = self.match_receive(envelope, dtype, length) {
            self.local.push_back((request, receive));
            return Ok(());
        }
        let is_eager = length <= self.eager_bytes && self.local_spent + credit_cost(length) <= CREDIT;
        let body = match self.operations.get(&request) {
            Some(Operation { kind: Kind::Send(send), .. }) if is_eager => {
                UnexpectedBody::Whole(send.bytes(request, 0..length, caller.send)?.to_vec())
            }
            _ => UnexpectedBody::Local(request),
        };
        self.add_unexpected(envelope, dtype, length, body);
        if is_eager {
            self.local_spent += credit_cost(length);
            self.end(request, Ok(None));
        }
        Ok(())
    }

    /// Queues sends to a peer in order, as far as they may be announced.
    pub(super) fn queue_sends(&mut self, to: usize) {
        while let Some(&request) = self.peers[to].unqueued.front() {
            let Some(Operation { kind: Kind::Send(send), .. }) = self.operations.get(&request) else {
                self.peers[to].unqueued.pop_front();
                continue;
            };
            let (tag, dtype, length) = (send.tag, send.dtype, send.length);
            let peer = &mut self.peers[to];
            if !peer.is_alive() {
                peer.unqueued.pop_front();
                if let Some((peer, loss)) = self.origin_of_loss(to) {
                    let during = super::operation::sending(to, tag);
                    self.end(request, Err(Error::PeerLost { peer, during, loss }));
                }
                continue;
            }
            let length_u64 = length as u64;
            if length <= self.eager_bytes && peer.spent + credit_cost(length) <= CREDIT {
                peer.spent += credit_cost(length);
                let body = FrameBody::Of(request, 0..length);
                let frame = Frame::Eager { tag, dtype, length: length_u64 };
                peer.queue.push_back(QueuedFrame { frame, body, then: OnSent::Sent(request) });
            } else if peer.sent_rts.len() < self.rts_max {
                let id = peer.next_id;
                peer.next_id += 1;
                peer.sent_rts.insert(id, request);
                peer.queue.push_back(QueuedFrame::bare(Frame::Rts { tag, dtype, length: length_u64, id }));
            } else {
                return;
            }
            peer.unqueued.pop_front();
        }
    }

    /// Gives a message that has arrived to a receive. If it does not fit, the receive fails and the
    /// message stays.
    fn match_message(&mut self, number: RequestId, receive: RequestId, caller: &mut CallerBuffers<'_>) {
        let Some(message) = self.messages.get(&number) else { return };
        let (envelope, dtype, length) = (message.envelope, message.dtype, message.length);
        if let Err(error) = self.assign(receive, envelope, dtype, length) {
            return self.end(receive, Err(error));
        }
        self.matching.remove_message(envelope, number);
        let Some(mut message) = self.messages.remove(&number) else { return };
        match message.body {
            UnexpectedBody::Whole(bytes) => {
                self.free_message(envelope.source, length);
                self.deliver(receive, &bytes, caller);
            }
            UnexpectedBody::Arriving(_) => {
                message.receive = Some(receive);
                self.messages.insert(number, message);
            }
            UnexpectedBody::Rts(id) => self.send_cts(envelope.source, id, receive, length),
            UnexpectedBody::Local(send) => self.local.push_back((send, receive)),
        }
    }

    /// Frees the memory of an unexpected message, and returns its credit.
    pub(super) fn free_message(&mut self, source: usize, length: usize) {
        if source == self.group.rank() {
            self.local_spent -= credit_cost(length);
        } else if self.peers[source].is_alive() {
            self.peers[source].return_credit(credit_cost(length));
        }
    }

    /// Asks the sender for an announced message.
    pub(super) fn send_cts(&mut self, source: usize, id: u64, receive: RequestId, length: usize) {
        let peer = &mut self.peers[source];
        peer.received_rts.remove(&id);
        // The sender waits for the CTS even if the message is empty, so the receive must not end
        // before it has been sent.
        let then = if length == 0 { OnSent::Received(receive) } else { OnSent::Nothing };
        peer.queue.push_back(QueuedFrame { frame: Frame::Cts { id }, body: FrameBody::None, then });
        if length > 0 {
            peer.incoming_transfers.insert(id, IncomingTransfer { receive, done: 0, length });
        }
    }

    /// Ends a receive or a probe that nothing has matched.
    pub(crate) fn cancel(&mut self, request: RequestId, error: Error) -> bool {
        let is_idle = self.operations.get(&request).is_some_and(Operation::is_idle);
        if is_idle {
            self.end(request, Err(error));
        }
        is_idle
    }

    /// Lets a send continue without its caller, unless its bytes are being sent from the caller's
    /// memory.
    pub(crate) fn detach(&mut self, request: RequestId, bytes: &[u8]) -> bool {
        let Some(operation) = self.operations.get_mut(&request) else { return false };
        let Kind::Send(send) = &mut operation.kind else { return false };
        if let Payload::Caller = send.payload {
            if send.begun {
                return false;
            }
            send.payload = Payload::Copied(bytes.to_vec());
        }
        send.has_owner = false;
        if std::mem::replace(&mut operation.has_deadline, false) {
            self.deadlines.forget(is_pending(&self.operations));
        }
        true
    }

    /// Copies staged bytes to the memory of the caller of a receive, which drives the engine from
    /// now on.
    pub(crate) fn move_to_caller(&mut self, request: RequestId, buffer: &mut [u8]) {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&request) else {
            return;
        };
        if let RecvBuffer::Staged(bytes) = &recv.dst
            && let Some(start) = buffer.get_mut(..bytes.len())
        {
            copy(start, bytes);
            recv.dst = RecvBuffer::Caller;
        }
    }
}

impl UnexpectedMessage {
    /// Records that the whole payload has arrived.
    pub(super) fn mark_arrived(&mut self) {
        if let UnexpectedBody::Arriving(bytes) = &mut self.body {
            self.body = UnexpectedBody::Whole(std::mem::take(bytes));
        }
    }
}

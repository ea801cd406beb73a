//! How operations begin.

use std::time::Duration;

use comm_core::{Error, Invalid, Loss, Received, Result, Source};

use super::operation::{Kind, Operation, awaiting};
use super::peer::{Asked, Body as FrameBody, Queued, Then};
use super::{Body, Engine, Message, Mine, Payload, Recv, Send, Space, Ticket, cost};
use crate::point_to_point::frame::{CREDIT, Frame};
use crate::point_to_point::matching::{Label, Pattern};

impl Engine {
    /// Begins a send. What becomes of it is in its outcome, also if it cannot be.
    pub(crate) fn send(&mut self, ticket: Ticket, send: Send, timeout: Duration, mine: &Mine<'_>) {
        let to = send.to;
        self.begin(ticket, Kind::Send(send), timeout);
        let usable = self.check_rank(to).and_then(|()| self.check_usable());
        let result = usable.and_then(|()| match to == self.group.rank() {
            true => self.send_to_self(ticket, mine),
            false => {
                self.peers[to].held_back.push_back(ticket);
                self.admit(to);
                Ok(())
            }
        });
        if let Err(error) = result {
            self.end(ticket, Err(error));
        }
    }

    /// Begins a receive. What becomes of it is in its outcome, also if it cannot be.
    pub(crate) fn recv(&mut self, ticket: Ticket, recv: Recv, timeout: Duration, mine: &mut Mine<'_>) {
        let pattern = recv.pattern;
        self.begin(ticket, Kind::Recv(recv), timeout);
        if let Err(error) = self.check_source(pattern) {
            return self.end(ticket, Err(error));
        }
        match self.matching.message_for(pattern) {
            Some(message) => self.take(message, ticket, mine),
            None => self.matching.add_receive(pattern, ticket),
        }
    }

    /// Begins to wait for a message without receiving it.
    pub(crate) fn probe(&mut self, ticket: Ticket, pattern: Pattern, timeout: Duration) {
        self.begin(ticket, Kind::Probe(pattern), timeout);
        match self.check_source(pattern).map(|()| self.look(pattern)) {
            Err(error) => self.end(ticket, Err(error)),
            Ok(Some(received)) => self.end(ticket, Ok(Some(received))),
            Ok(None) => drop(self.probes.insert(ticket)),
        }
    }

    /// Tells of the message that a receive would get.
    pub(crate) fn look(&self, pattern: Pattern) -> Option<Received> {
        let message = self.messages.get(&self.matching.message_for(pattern)?)?;
        let Label { source, tag } = message.label;
        let len = message.length / message.dtype.size();
        Some(Received::new(source, tag, message.dtype, len))
    }

    /// Refuses a rank that is no member.
    pub(crate) fn check_rank(&self, rank: usize) -> Result<()> {
        let size = self.group.size();
        if rank < size { Ok(()) } else { Err(Invalid::Rank { rank, size }.into()) }
    }

    /// Refuses everything after the end.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(first.clone())))
    }

    /// Refuses a pattern that no message can match any more. Messages that are there still count.
    pub(crate) fn check_source(&self, pattern: Pattern) -> Result<()> {
        if let Source::Rank(rank) = pattern.from {
            self.check_rank(rank)?;
        }
        self.check_usable()?;
        if self.matching.message_for(pattern).is_some() {
            return Ok(());
        }
        match self.absence(pattern.from) {
            Some((peer, loss)) => Err(Error::PeerLost { peer, during: awaiting(pattern), loss }),
            None => Ok(()),
        }
    }

    /// Why nothing can come from there any more, and whose absence that is.
    pub(super) fn absence(&self, from: Source) -> Option<(usize, Loss)> {
        match from {
            Source::Rank(rank) => self.culprit(rank),
            Source::Any => {
                let lost = || self.group.peers().filter_map(|rank| self.culprit(rank));
                let died = lost().find(|(_, loss)| !matches!(loss, Loss::Finished));
                let alone = lost().count() + 1 == self.group.size();
                died.or_else(|| lost().next().filter(|_| alone))
            }
        }
    }

    fn send_to_self(&mut self, ticket: Ticket, mine: &Mine<'_>) -> Result<()> {
        let rank = self.group.rank();
        let (label, dtype, length) = match self.operations.get(&ticket) {
            Some(Operation { kind: Kind::Send(send), .. }) => (send.label(rank), send.dtype, send.length),
            _ => return Err(Error::Internal("a send that begins is not known".into())),
        };
        if let Some(receive) = self.claim(label, dtype, length) {
            self.local.push_back((ticket, receive));
            return Ok(());
        }
        let is_eager = length <= self.eager_bytes && self.local_held + cost(length) <= CREDIT;
        let body = match self.operations.get(&ticket) {
            Some(Operation { kind: Kind::Send(send), .. }) if is_eager => {
                Body::Whole(send.bytes(ticket, 0..length, mine.send)?.to_vec())
            }
            _ => Body::Local(ticket),
        };
        self.file(label, dtype, length, body);
        if is_eager {
            self.local_held += cost(length);
            self.end(ticket, Ok(None));
        }
        Ok(())
    }

    /// Queues sends to a peer in their order, as far as it may be told of them.
    pub(super) fn admit(&mut self, to: usize) {
        while let Some(&ticket) = self.peers[to].held_back.front() {
            let Some(Operation { kind: Kind::Send(send), .. }) = self.operations.get(&ticket) else {
                self.peers[to].held_back.pop_front();
                continue;
            };
            let (tag, dtype, length) = (send.tag, send.dtype, send.length);
            let peer = &mut self.peers[to];
            if !peer.is_there() {
                peer.held_back.pop_front();
                if let Some((peer, loss)) = self.culprit(to) {
                    let during = super::operation::sending(to, tag);
                    self.end(ticket, Err(Error::PeerLost { peer, during, loss }));
                }
                continue;
            }
            let length_u64 = length as u64;
            if length <= self.eager_bytes && peer.spent + cost(length) <= CREDIT {
                peer.spent += cost(length);
                let body = FrameBody::Of(ticket, 0..length);
                let frame = Frame::Eager { tag, dtype, length: length_u64 };
                peer.queue.push_back(Queued { frame, body, then: Then::Sent(ticket) });
            } else if peer.announced.len() < self.announced_max {
                let id = peer.next_id;
                peer.next_id += 1;
                peer.announced.insert(id, ticket);
                peer.queue.push_back(Queued::bare(Frame::Announce { tag, dtype, length: length_u64, id }));
            } else {
                return;
            }
            peer.held_back.pop_front();
        }
    }

    /// Gives a message that is there to a receive, unless it does not fit: then it stays.
    fn take(&mut self, number: Ticket, receive: Ticket, mine: &mut Mine<'_>) {
        let Some(message) = self.messages.get(&number) else { return };
        let (label, dtype, length) = (message.label, message.dtype, message.length);
        if let Err(error) = self.fits(receive, label, dtype, length) {
            return self.end(receive, Err(error));
        }
        self.matching.remove_message(label, number);
        self.bind(receive, label, length);
        let Some(mut message) = self.messages.remove(&number) else { return };
        match message.body {
            Body::Whole(bytes) => {
                self.free(label.source, length);
                self.deliver(receive, &bytes, mine);
            }
            Body::Arriving(_) => {
                message.receive = Some(receive);
                self.messages.insert(number, message);
            }
            Body::Announced(id) => self.ask(label.source, id, receive, length),
            Body::Local(send) => self.local.push_back((send, receive)),
        }
    }

    /// Gives back the memory of a message that came before it was expected.
    pub(super) fn free(&mut self, source: usize, length: usize) {
        if source == self.group.rank() {
            self.local_held -= cost(length);
        } else if self.peers[source].is_there() {
            self.peers[source].freed(cost(length));
        }
    }

    /// Asks the sender for a message that it announced.
    pub(super) fn ask(&mut self, source: usize, id: u64, receive: Ticket, length: usize) {
        let peer = &mut self.peers[source];
        peer.offered.remove(&id);
        // The sender waits for this also if it has nothing more to send, so the receive does not end before.
        let then = if length == 0 { Then::Received(receive) } else { Then::Nothing };
        peer.queue.push_back(Queued { frame: Frame::Clear { id }, body: FrameBody::None, then });
        if length > 0 {
            peer.asked.insert(id, Asked { receive, done: 0, length });
        }
    }

    /// Takes back a receive or a probe that nothing has matched.
    pub(crate) fn withdraw(&mut self, ticket: Ticket, error: Error) -> bool {
        let is_idle = self.operations.get(&ticket).is_some_and(Operation::is_idle);
        if is_idle {
            self.end(ticket, Err(error));
        }
        is_idle
    }

    /// Lets a send go on without its caller, unless its bytes are on their way from where they are.
    pub(crate) fn let_go(&mut self, ticket: Ticket, bytes: &[u8]) -> bool {
        let Some(operation) = self.operations.get_mut(&ticket) else { return false };
        let Kind::Send(send) = &mut operation.kind else { return false };
        if let Payload::RecvBuf = send.payload {
            if send.begun {
                return false;
            }
            send.payload = Payload::Copied(bytes.to_vec());
        }
        send.awaited = false;
        if let Some(deadline) = operation.deadline.take() {
            self.deadlines.remove(&(deadline, ticket));
        }
        true
    }

    /// From here on the caller of a receive drives: what came goes where it belongs.
    pub(crate) fn hand_over(&mut self, ticket: Ticket, buffer: &mut [u8]) {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&ticket) else { return };
        if let Space::Staged(bytes) = &recv.space
            && let Some(start) = buffer.get_mut(..bytes.len())
        {
            start.copy_from_slice(bytes);
            recv.space = Space::RecvBuf;
        }
    }
}

/// A message whose payload has arrived.
impl Message {
    pub(super) fn arrived(&mut self) {
        if let Body::Arriving(bytes) = &mut self.body {
            self.body = Body::Whole(std::mem::take(bytes));
        }
    }
}

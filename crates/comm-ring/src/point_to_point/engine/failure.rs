//! What goes wrong: peers that are gone, deadlines that pass, and the end of everything.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{Error, Interest, Loss, Result, Source, Transport};

use super::operation::{Kind, Matched, Operation, Recv};
use super::peer::{Body as FrameBody, Peer, Queued, Then};
use super::{Body, Engine, Mine, Ticket};
use crate::point_to_point::frame::{Frame, TEXT_MAX};

impl Engine {
    /// Takes note of how an attempt to move ended. Tells whether anything moved.
    pub(super) fn noted(&mut self, peer: usize, result: Result<bool>) -> bool {
        match result {
            Ok(moved) => moved,
            Err(Error::PeerLost { loss, .. }) => {
                self.lose(peer, loss);
                true
            }
            Err(error) => {
                self.end_all(error);
                true
            }
        }
    }

    /// Takes note of how an attempt to send ended. What a peer said before its stream broke may still lie there, and
    /// tell more than the break: then it is lost when that has been read.
    pub(super) fn noted_sending(&mut self, peer: usize, result: Result<bool>) -> bool {
        if matches!(result, Err(Error::PeerLost { .. })) {
            self.peers[peer].mute();
            return true;
        }
        self.noted(peer, result)
    }

    /// A peer is gone: what needs it fails. If the peer had seen another rank die, that rank is named.
    pub(super) fn lose(&mut self, peer: usize, loss: Loss) {
        if !self.peers[peer].is_there() {
            return;
        }
        let is_death = !matches!(loss, Loss::Finished);
        // What has gone out whole counts as sent, as it does where the transport copies: who is gone reads no memory.
        for (_, sent) in std::mem::take(&mut self.peers[peer].unreleased) {
            self.end(sent, Ok(None));
        }
        self.peers[peer].forget();
        self.peers[peer].loss = Some(loss);
        let Some((culprit, loss)) = self.culprit(peer) else { return };
        if is_death || culprit != peer {
            self.report_death(culprit, &loss);
        }
        let unfinished = |message: &super::Message| {
            message.label.source == peer && !matches!(message.body, Body::Whole(_))
        };
        let lost: Vec<Ticket> = self
            .messages
            .iter()
            .filter(|(_, message)| unfinished(message))
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(message) = self.messages.remove(&number) {
                self.matching.remove_message(message.label, number);
            }
        }
        let anyone = self.absence(Source::Any).is_some();
        let needs = |operation: &Operation| match &operation.kind {
            Kind::Send(send) => send.to == peer,
            Kind::Recv(Recv { matched: Some(Matched { label, .. }), .. }) => label.source == peer,
            Kind::Recv(Recv { pattern, .. }) | Kind::Probe(pattern) => match pattern.from {
                Source::Rank(rank) => rank == peer,
                Source::Any => anyone,
            },
        };
        let failed: Vec<Ticket> = self
            .operations
            .iter()
            .filter(|(_, operation)| needs(operation))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in failed {
            let Some(operation) = self.operations.get(&ticket) else { continue };
            let error = Error::PeerLost { peer: culprit, during: operation.during(), loss: loss.clone() };
            self.end(ticket, Err(error));
        }
    }

    /// The rank whose loss is the cause of that of `peer`, and how it showed; `None` while `peer` is there.
    ///
    /// A rank that sees another one die fails and leaves, and the ranks that wait for it fail in turn: all of them name
    /// the rank that died.
    pub(super) fn culprit(&self, peer: usize) -> Option<(usize, Loss)> {
        let Peer { loss, witnessed, .. } = &self.peers[peer];
        let loss = loss.clone()?;
        match witnessed {
            Some((dead, detail)) => Some((
                *dead,
                Loss::Reported { by: peer, detail: format!("{detail}; rank {peer} then: {loss}") },
            )),
            None => Some((peer, loss)),
        }
    }

    /// Tells every peer that a rank died, so that those who wait for this rank know why, should it leave.
    pub(crate) fn report_death(&mut self, rank: usize, loss: &Loss) {
        let mut text = loss.to_string().into_bytes();
        text.truncate(TEXT_MAX);
        let frame = Frame::Lost { length: text.len() as u64, rank: rank as u64 };
        for other in self.group.peers().filter(|&other| other != rank) {
            let peer = &mut self.peers[other];
            if peer.is_there() {
                let body = FrameBody::Text(text.clone());
                peer.queue.push_back(Queued { frame, body, then: Then::Nothing });
            }
        }
    }

    /// Ends every operation with this error, and refuses every later one. The first error stays.
    pub(crate) fn end_all(&mut self, error: Error) {
        if self.poison.is_some() {
            return;
        }
        self.poison = Some(Arc::new(error.clone()));
        let all: Vec<Ticket> = self.operations.keys().copied().collect();
        for ticket in all {
            self.end(ticket, Err(error.clone()));
        }
        (self.messages, self.matching, self.local) = Default::default();
        self.queue_last_words(&error);
        self.news = true;
    }

    /// Replaces what was to be said by the reason for the end. Where a frame is half sent nothing can follow it; there
    /// the end of the stream must do.
    fn queue_last_words(&mut self, error: &Error) {
        let (by, text) = match error {
            Error::Aborted { by, reason } => (*by, reason.clone()),
            other => (self.group.rank(), other.to_string()),
        };
        let mut text = text.into_bytes();
        text.truncate(TEXT_MAX);
        let frame = Frame::Abort { length: text.len() as u64, by: by as u64 };
        for peer in self.peers.iter_mut().filter(|peer| peer.is_there()) {
            let is_clean = peer.under_way.front().is_none_or(|current| current.at == 0);
            peer.forget();
            if is_clean {
                let body = FrameBody::Text(text.clone());
                peer.queue.push_back(Queued { frame, body, then: Then::Nothing });
            }
        }
    }

    /// Tells every peer that this rank leaves in order.
    pub(crate) fn say_goodbye(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.is_there()) {
            peer.queue.push_back(Queued::bare(Frame::Goodbye));
        }
    }

    /// Sends what is left to be said. Tells for what it still waits; `None` if for nothing.
    pub(crate) fn last_words(&mut self, transport: &mut dyn Transport) -> Option<Interest> {
        let mut interest = Interest::default();
        for peer in self.group.peers() {
            match self.flush(transport, peer, &Mine::default()) {
                Ok(_) if self.peers[peer].has_frames() && self.peers[peer].is_there() => {
                    interest.add_send(peer)
                }
                Ok(_) => {}
                Err(_) => self.peers[peer].mute(),
            }
        }
        (!interest.send().is_empty()).then_some(interest)
    }

    /// Ends the receives in the background that no message has matched.
    pub(crate) fn cancel_recvs(&mut self) {
        let is_unmatched = |operation: &Operation| operation.is_owned() && operation.is_idle();
        let unmatched: Vec<Ticket> = self
            .operations
            .iter()
            .filter(|(_, operation)| is_unmatched(operation))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in unmatched {
            self.end(ticket, Err(Error::Cancelled));
        }
    }

    /// Gives operations that have just begun their deadlines, and ends those whose deadline has passed.
    pub(super) fn watch_deadlines(&mut self, now: Instant) {
        for ticket in std::mem::take(&mut self.fresh) {
            let Some(operation) = self.operations.get_mut(&ticket) else { continue };
            operation.deadline = now.checked_add(operation.timeout);
            self.deadlines.extend(operation.deadline.map(|deadline| (deadline, ticket)));
        }
        while let Some(&(deadline, ticket)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.expire(ticket);
        }
    }

    fn expire(&mut self, ticket: Ticket) {
        let Some(operation) = self.operations.get(&ticket) else { return };
        let waiting_for = match operation.waits_for() {
            Some(peer) => vec![peer],
            None => self.group.peers().filter(|&peer| self.peers[peer].is_there()).collect(),
        };
        let is_idle = operation.is_idle();
        let error = Error::Timeout { waiting_for, after: operation.timeout, during: operation.during() };
        if is_idle {
            self.end(ticket, Err(error));
        } else {
            // Some of its bytes may be on their way: nothing can follow them.
            self.end_all(error);
        }
    }
}

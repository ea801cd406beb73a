//! Failures: lost peers, deadlines that pass, and the end of all operations.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{Error, Interest, Loss, Result, Source, Transport};

use super::operation::{Kind, Matched, Operation, RecvRequest};
use super::peer::{FrameBody, OnSent, PeerState, QueuedFrame};
use super::{CallerBuffers, ProgressEngine, RequestId, UnexpectedBody, is_pending};
use crate::point_to_point::frame::{Frame, TEXT_MAX};

impl ProgressEngine {
    /// Records the result of an attempt to move bytes. Returns whether any moved.
    pub(super) fn record(&mut self, peer: usize, result: Result<bool>) -> bool {
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

    /// Records the result of an attempt to send. Frames that a peer sent before its stream broke
    /// may still be readable and explain the failure, so the peer counts as lost only once they
    /// have been read.
    pub(super) fn record_send(&mut self, peer: usize, result: Result<bool>) -> bool {
        if matches!(result, Err(Error::PeerLost { .. })) {
            self.peers[peer].close_send();
            return true;
        }
        self.record(peer, result)
    }

    /// Fails the operations that need a lost peer. If the peer had reported the death of another
    /// rank, errors name that rank.
    pub(super) fn lose(&mut self, peer: usize, loss: Loss) {
        if !self.peers[peer].is_alive() {
            return;
        }
        let is_death = !matches!(loss, Loss::Finished);
        if let Loss::HostUnreachable { .. } = loss {
            self.lost_host.get_or_insert_with(|| (peer, loss.clone()));
        }
        // Messages that the transport has accepted completely count as sent, as if it had copied
        // them: a lost peer no longer reads their memory.
        for (_, sent) in std::mem::take(&mut self.peers[peer].unreleased) {
            self.end(sent, Ok(None));
        }
        self.peers[peer].reset();
        self.peers[peer].loss = Some(loss);
        let Some((origin_of_loss, loss)) = self.origin_of_loss(peer) else { return };
        if is_death || origin_of_loss != peer {
            self.report_death(origin_of_loss, &loss);
        }
        let unfinished = |message: &super::UnexpectedMessage| {
            message.envelope.source == peer && !matches!(message.body, UnexpectedBody::Whole(_))
        };
        let lost: Vec<RequestId> = self
            .messages
            .iter()
            .filter(|(_, message)| unfinished(message))
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(message) = self.messages.remove(&number) {
                self.matching.remove_message(message.envelope, number);
            }
        }
        let any_source = self.source_loss(Source::Any).is_some();
        let needs = |operation: &Operation| match &operation.kind {
            Kind::Send(send) => send.to == peer,
            Kind::Recv(RecvRequest { matched: Some(Matched { envelope, .. }), .. }) => {
                envelope.source == peer
            }
            Kind::Recv(RecvRequest { key, .. }) | Kind::Probe(key) => match key.from {
                Source::Rank(rank) => rank == peer,
                Source::Any => any_source,
            },
        };
        let failed: Vec<RequestId> = self
            .operations
            .iter()
            .filter(|(_, operation)| needs(operation))
            .map(|(request, _)| *request)
            .collect();
        for request in failed {
            let Some(operation) = self.operations.get(&request) else { continue };
            let error =
                Error::PeerLost { peer: origin_of_loss, during: operation.during(), loss: loss.clone() };
            self.end(request, Err(error));
        }
    }

    /// Returns the rank whose loss caused the loss of `peer`, and its loss; `None` while `peer` is
    /// alive.
    ///
    /// A rank that detects the death of another one fails and leaves, and the ranks that wait for
    /// it fail in turn: all of them name the rank that died.
    pub(super) fn origin_of_loss(&self, peer: usize) -> Option<(usize, Loss)> {
        let PeerState { loss, reported_death, .. } = &self.peers[peer];
        let loss = loss.clone()?;
        match reported_death {
            Some((dead, detail)) => Some((
                *dead,
                Loss::Reported { by: peer, detail: format!("{detail}; rank {peer} then: {loss}") },
            )),
            None => Some((peer, loss)),
        }
    }

    /// Reports a death to all peers, so that ranks that wait for this rank know the cause if it
    /// leaves.
    pub(crate) fn report_death(&mut self, rank: usize, loss: &Loss) {
        let mut text = loss.to_string().into_bytes();
        text.truncate(TEXT_MAX);
        let frame = Frame::Lost { length: text.len() as u64, rank: rank as u64 };
        let before = self.peers.get_mut(rank).cloned();
        self.peers.change_all(|peer| {
            if peer.is_alive() {
                let body = FrameBody::Text(text.clone());
                peer.queue.push_back(QueuedFrame { frame, body, then: OnSent::Nothing });
            }
        });
        if let Some((peer, before)) = self.peers.get_mut(rank).zip(before) {
            *peer = before;
        }
    }

    /// Ends every operation with this error, and makes every later one fail. Does nothing if an
    /// earlier error has done so.
    pub(crate) fn end_all(&mut self, error: Error) {
        if self.poison.is_some() {
            return;
        }
        self.poison = Some(Arc::new(error.clone()));
        let all: Vec<RequestId> = self.operations.keys().copied().collect();
        for request in all {
            self.end(request, Err(error.clone()));
        }
        (self.messages, self.matching, self.local) = Default::default();
        self.queue_abort(&error);
        self.has_completed = true;
    }

    /// Replaces queued frames with a report of the cause. Nothing can follow a partly sent frame,
    /// also no later report, so peers that are receiving one see only the end of the stream.
    fn queue_abort(&mut self, error: &Error) {
        let (by, text) = match error {
            Error::Aborted { by, reason } => (*by, reason.clone()),
            other => (self.group.rank(), other.to_string()),
        };
        let mut text = text.into_bytes();
        text.truncate(TEXT_MAX);
        let frame = Frame::Abort { length: text.len() as u64, by: by as u64 };
        self.peers.change_all(|peer| {
            if !peer.is_alive() {
                return;
            }
            let is_clean = peer.in_flight.front().is_none_or(|current| current.at == 0);
            peer.reset();
            if is_clean {
                let body = FrameBody::Text(text.clone());
                peer.queue.push_back(QueuedFrame { frame, body, then: OnSent::Nothing });
            } else {
                peer.close_send();
            }
        });
    }

    /// Queues a goodbye to every peer.
    pub(crate) fn queue_goodbye(&mut self) {
        self.peers.change_all(|peer| {
            if peer.is_alive() {
                peer.queue.push_back(QueuedFrame::bare(Frame::Goodbye));
            }
        });
    }

    /// Sends queued frames to the peers to which there is a stream. Returns the interest for those
    /// that remain, or `None` if there are none.
    pub(crate) fn linger(&mut self, transport: &mut dyn Transport) -> Option<Interest> {
        let mut interest = Interest::default();
        for peer in self.group.peers() {
            if !transport.is_open(peer) {
                continue;
            }
            match self.flush(transport, peer, &CallerBuffers::default()) {
                Ok(_) if self.peers[peer].has_frames() && self.peers[peer].is_alive() => {
                    interest.add_send(peer)
                }
                Ok(_) => {}
                Err(_) => self.peers[peer].close_send(),
            }
        }
        (!interest.send().is_empty()).then_some(interest)
    }

    /// Cancels background receives that no message has matched.
    pub(crate) fn cancel_recvs(&mut self) {
        let is_unmatched = |operation: &Operation| operation.is_owned() && operation.is_idle();
        let unmatched: Vec<RequestId> = self
            .operations
            .iter()
            .filter(|(_, operation)| is_unmatched(operation))
            .map(|(request, _)| *request)
            .collect();
        for request in unmatched {
            self.end(request, Err(Error::Cancelled));
        }
    }

    /// Sets the deadlines of operations that have just begun, and ends those whose deadline has
    /// passed.
    pub(super) fn watch_deadlines(&mut self, now: Instant) {
        self.deadlines.set(now);
        while let Some(request) = self.deadlines.take_expired(now, is_pending(&self.operations)) {
            self.expire(request);
        }
    }

    fn expire(&mut self, request: RequestId) {
        let Some(operation) = self.operations.get_mut(&request) else { return };
        operation.has_deadline = false;
        let waiting_for = match operation.waits_for() {
            Some(peer) => vec![peer],
            None => self.group.peers().filter(|&peer| self.peers[peer].is_alive()).collect(),
        };
        let is_idle = operation.is_idle();
        let error = Error::Timeout { waiting_for, after: operation.timeout, during: operation.during() };
        if is_idle {
            self.end(request, Err(error));
        } else {
            // Some of its bytes may have been sent, and no other frame can follow an incomplete
            // one.
            self.end_all(error);
        }
    }
}

//! The progress engine: a state machine that moves the messages of one rank, and never waits.
//!
//! One thread at a time holds it, together with the transport, and the memory of its own call as
//! [`CallerBuffers`]. All other bytes are in memory that the engine owns: a copy, or the buffer of
//! a background operation.

mod deadlines;
mod direct;
mod failure;
mod incoming;
mod operation;
mod outgoing;
mod peer;
mod post;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{DType, Error, Group, Interest, Invalid, Loss, Received, Result, Transport, copy};
use rustc_hash::FxHashMap;

use super::frame::{CREDIT, MESSAGE_OVERHEAD, RTS_MAX};
use super::matching::{Envelope, Matching};
use crate::RingConfig;
use crate::peer_table::PeerTable;
use deadlines::Deadlines;
pub(crate) use direct::{NeedsOperation, PartlyReceived, PartlySent};
pub(crate) use operation::{
    CallerBuffers, Finished, Outcome, Payload, RecvBuffer, RecvRequest, RequestId, SendRequest,
};
use operation::{Kind, Matched, Operation, misplaced};
use peer::PeerState;

/// The number of ended operations for which the engine keeps memory.
const FINISHED_KEPT_MAX: usize = 256;

/// A message that no receive has matched.
struct UnexpectedMessage {
    envelope: Envelope,
    dtype: DType,
    /// In bytes.
    length: usize,
    body: UnexpectedBody,
    /// The receive that gets it once it has arrived.
    receive: Option<RequestId>,
}

/// The location of the payload of an unexpected message.
enum UnexpectedBody {
    Whole(Vec<u8>),
    Arriving(Vec<u8>),
    /// At its sender, which identifies it by this number.
    Rts(u64),
    /// In a send of this rank to itself.
    Local(RequestId),
}

pub(crate) struct ProgressEngine {
    group: Group,
    eager_bytes: usize,
    part_bytes: usize,
    rts_max: usize,
    /// The entry of this rank is never used.
    peers: PeerTable<PeerState>,
    /// The number of operations that may involve any peer.
    any_source: usize,
    matching: Matching,
    messages: FxHashMap<RequestId, UnexpectedMessage>,
    operations: FxHashMap<RequestId, Operation>,
    probes: BTreeSet<RequestId>,
    deadlines: Deadlines,
    outcomes: FxHashMap<RequestId, Outcome>,
    finished: Vec<Finished>,
    /// The number of pending background operations.
    background: usize,
    /// Whether an operation has ended for which another thread may be waiting.
    has_completed: bool,
    /// Sends of this rank to itself, and the receives that match them.
    local: VecDeque<(RequestId, RequestId)>,
    /// The credit that messages of this rank to itself use.
    local_spent: u64,
    next: RequestId,
    /// The peer that is served first. It rotates, so that no peer is always last.
    turn: usize,
    poison: Option<Arc<Error>>,
    /// The first rank that was lost because its host does not answer.
    pub(crate) lost_host: Option<(usize, Loss)>,
}

impl ProgressEngine {
    pub(crate) fn new(group: Group, config: &RingConfig) -> Self {
        Self {
            group,
            eager_bytes: config.eager_bytes.min((CREDIT - MESSAGE_OVERHEAD) as usize),
            part_bytes: config.part_bytes.max(1),
            rts_max: RTS_MAX,
            peers: PeerTable::new(group.size(), PeerState::new()),
            any_source: 0,
            matching: Matching::default(),
            messages: FxHashMap::default(),
            operations: FxHashMap::default(),
            probes: BTreeSet::new(),
            deadlines: Deadlines::default(),
            outcomes: FxHashMap::default(),
            finished: Vec::new(),
            background: 0,
            has_completed: false,
            local: VecDeque::new(),
            local_spent: 0,
            next: 0,
            turn: 0,
            poison: None,
            lost_host: None,
        }
    }

    /// Returns a number that is greater than all previous ones.
    pub(crate) const fn next_request(&mut self) -> RequestId {
        self.next += 1;
        self.next
    }

    /// Sends queued bytes to all peers, and reads from the peers that some operation involves, or
    /// from all of them if `everyone`. Returns whether any bytes moved.
    pub(crate) fn progress(
        &mut self,
        transport: &mut dyn Transport,
        caller: &mut CallerBuffers<'_>,
        everyone: bool,
    ) -> bool {
        self.watch_deadlines(transport.now());
        let mut moved = self.copy_local(caller);
        let size = self.group.size();
        self.turn = (self.turn + 1) % size;
        for peers in [self.turn..size, 0..self.turn] {
            let mut next = self.next_used(peers.clone(), transport);
            while let Some(peer) = next.filter(|_| self.poison.is_none()) {
                let concerned = everyone || self.any_source > 0 || self.peers[peer].pending > 0;
                let result = if concerned { self.read(transport, peer, caller) } else { Ok(false) };
                moved |= self.record(peer, result);
                let result = self.flush(transport, peer, caller);
                moved |= self.record_send(peer, result);
                next = self.next_used(peer + 1..peers.end, transport);
            }
        }
        moved
    }

    /// Returns the first of these peers to which there is a stream, or an operation needs one: an
    /// operation connects to its peer, but nothing else does.
    fn next_used(&self, peers: Range<usize>, transport: &dyn Transport) -> Option<usize> {
        let open = transport.next_open(peers.start).filter(|peer| *peer < peers.end);
        let mut rest = peers.start..open.unwrap_or(peers.end);
        while let Some(peer) = self.peers.find(rest.clone(), |peer| peer.pending > 0) {
            if peer != self.group.rank() {
                return Some(peer);
            }
            rest.start = peer + 1;
        }
        open
    }

    /// Sets the events to wait for when nothing moves. A stream that opens wakes this rank too.
    pub(crate) fn interest(&self, interest: &mut Interest, transport: &dyn Transport) {
        interest.clear();
        let size = self.group.size();
        let mut next = self.next_used(0..size, transport);
        while let Some(rank) = next {
            let peer = &self.peers[rank];
            if peer.is_alive() {
                interest.add_recv(rank);
            }
            if peer.is_alive() && peer.has_outgoing() {
                interest.add_send(rank);
            }
            next = self.next_used(rank + 1..size, transport);
        }
    }

    /// Returns the earliest deadline of an operation; `None` if none has a deadline.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.deadlines.first(is_pending(&self.operations))
    }

    /// Returns whether background operations are pending.
    pub(crate) const fn has_background(&self) -> bool {
        self.background > 0
    }

    /// Returns whether, since the last call, an operation has ended for which another thread may be
    /// waiting.
    pub(crate) const fn take_completed(&mut self) -> bool {
        std::mem::replace(&mut self.has_completed, false)
    }

    /// Returns whether an operation has ended since the last call of [`Self::take_completed`].
    pub(crate) const fn has_completed(&self) -> bool {
        self.has_completed
    }

    /// Takes the background operations that have ended, whose owners must be notified.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        if self.finished.is_empty() { Vec::new() } else { std::mem::take(&mut self.finished) }
    }

    /// Takes back the memory of a list that [`Self::take_finished`] returned, unless it is large.
    pub(crate) fn reuse_finished(&mut self, list: Vec<Finished>) {
        if self.finished.is_empty() && list.capacity() <= FINISHED_KEPT_MAX {
            self.finished = list;
        }
    }

    /// Returns the outcome of a call that a thread waits for, until it is taken.
    pub(crate) fn outcome(&self, request: RequestId) -> Option<&Outcome> {
        self.outcomes.get(&request)
    }

    pub(crate) fn take_outcome(&mut self, request: RequestId) -> Option<Outcome> {
        self.outcomes.remove(&request)
    }

    pub(crate) const fn poison_cause(&self) -> Option<&Arc<Error>> {
        self.poison.as_ref()
    }

    /// Adds an operation.
    fn begin(&mut self, request: RequestId, kind: Kind, timeout: Duration) {
        let operation = Operation { kind, timeout, has_deadline: true };
        *self.pending_count(&operation) += 1;
        self.background += usize::from(operation.is_owned());
        self.operations.insert(request, operation);
        self.deadlines.add(timeout, request);
    }

    /// Returns the counter that includes this operation.
    fn pending_count(&mut self, operation: &Operation) -> &mut usize {
        match operation.peer().and_then(|peer| self.peers.get_mut(peer)) {
            Some(peer) => &mut peer.pending,
            None => &mut self.any_source,
        }
    }

    /// Ends an operation, with or without an error.
    fn end(&mut self, request: RequestId, result: Result<Option<Received>>) {
        if let Some(kind) = self.remove(request) {
            self.finish(request, kind, result);
        }
    }

    /// Removes an operation that ends.
    fn remove(&mut self, request: RequestId) -> Option<Kind> {
        let operation = self.operations.remove(&request)?;
        *self.pending_count(&operation) -= 1;
        self.background -= usize::from(operation.is_owned());
        if operation.has_deadline {
            self.deadlines.forget(is_pending(&self.operations));
        }
        self.has_completed = true;
        Some(operation.kind)
    }

    /// Gives the result of an operation that was removed to its owner.
    fn finish(&mut self, request: RequestId, kind: Kind, result: Result<Option<Received>>) {
        match kind {
            Kind::Send(SendRequest { payload: Payload::Owned(message), .. }) => {
                self.finished.push(Finished::Sent(message, result.map(drop)));
            }
            Kind::Send(send) => {
                if send.has_owner {
                    self.outcomes.insert(request, Outcome { result, staged: Vec::new() });
                }
            }
            Kind::Recv(recv) => {
                if recv.matched.is_none() {
                    self.matching.remove_receive(recv.key, request);
                }
                self.end_recv(request, recv.dst, result);
            }
            Kind::Probe(_) => {
                self.probes.remove(&request);
                self.outcomes.insert(request, Outcome { result, staged: Vec::new() });
            }
        }
    }

    fn end_recv(&mut self, request: RequestId, dst: RecvBuffer, result: Result<Option<Received>>) {
        let staged = match dst {
            RecvBuffer::Owned(buffer) => {
                let none = || Error::Internal("a receive ended without a message".into());
                let result = result.and_then(|received| received.ok_or_else(none));
                self.finished.push(Finished::Received(buffer, result));
                return;
            }
            RecvBuffer::Discarded(discarded) => {
                self.finished.push(Finished::Received(discarded.owner, Err(discarded.reason)));
                return;
            }
            RecvBuffer::Staged(bytes) => bytes,
            RecvBuffer::Caller => Vec::new(),
        };
        self.outcomes.insert(request, Outcome { result, staged });
    }

    /// Ends a receive whose message has arrived.
    fn end_received(&mut self, request: RequestId) {
        let Some(kind) = self.remove(request) else { return };
        let result = match &kind {
            Kind::Recv(recv) => Ok(recv.received()),
            Kind::Send(_) | Kind::Probe(_) => Err(misplaced()),
        };
        self.finish(request, kind, result);
    }

    /// Finds the receive for a message that has just arrived. Receives that cannot hold it fail, as
    /// if the message had arrived before them.
    fn match_receive(&mut self, envelope: Envelope, dtype: DType, length: usize) -> Option<RequestId> {
        while let Some(receive) = self.matching.take_receive_for(envelope) {
            match self.assign(receive, envelope, dtype, length) {
                Ok(()) => return Some(receive),
                Err(error) => self.end(receive, Err(error)),
            }
        }
        None
    }

    /// Assigns a message to a receive. Returns an error if it is too long for it, or has another
    /// type.
    fn assign(&mut self, receive: RequestId, envelope: Envelope, dtype: DType, length: usize) -> Result<()> {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&receive) else {
            return Err(Error::Internal("a pending receive is unknown".into()));
        };
        let (len, capacity, wanted) = (length / dtype.size(), recv.capacity, recv.dtype);
        if dtype == wanted && len <= capacity {
            recv.matched = Some(Matched { envelope, length });
            return Ok(());
        }
        let Envelope { source, tag } = envelope;
        Err(Invalid::Message { source_rank: source, tag, len, dtype, capacity, wanted }.into())
    }

    /// Adds a message that no receive matched, and completes the probes that it matches.
    fn add_unexpected(
        &mut self,
        envelope: Envelope,
        dtype: DType,
        length: usize,
        body: UnexpectedBody,
    ) -> RequestId {
        let number = self.next_request();
        self.messages.insert(number, UnexpectedMessage { envelope, dtype, length, body, receive: None });
        self.matching.add_message(envelope, number);
        let probes: Vec<RequestId> = self.probes.iter().copied().collect();
        for probe in probes {
            let Some(Operation { kind: Kind::Probe(key), .. }) = self.operations.get(&probe) else {
                continue;
            };
            if let Some(received) = self.peek(*key) {
                self.end(probe, Ok(Some(received)));
            }
        }
        number
    }

    /// Copies a whole message to its receive, and ends the receive.
    fn deliver(&mut self, receive: RequestId, bytes: &[u8], caller: &mut CallerBuffers<'_>) {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&receive) else {
            return;
        };
        match recv.bytes_mut(receive, 0..bytes.len(), caller) {
            Ok(dst) => {
                copy(dst, bytes);
                self.end_received(receive);
            }
            Err(error) => {
                self.fail_buffer(receive, error);
                self.end_received(receive);
            }
        }
    }

    /// Copies messages of this rank to itself.
    fn copy_local(&mut self, caller: &mut CallerBuffers<'_>) -> bool {
        let mut moved = false;
        while let Some((request, receive)) = self.local.pop_front() {
            let Some(operation) = self.operations.remove(&request) else { continue };
            let borrowed = caller.send;
            let bytes = match &operation.kind {
                Kind::Send(send) => send.bytes(request, 0..send.length, borrowed),
                Kind::Recv(_) | Kind::Probe(_) => Err(misplaced()),
            };
            let result = bytes.map(|bytes| self.deliver(receive, bytes, caller));
            if let Err(error) = &result {
                self.end(receive, Err(error.clone()));
            }
            self.operations.insert(request, operation);
            self.end(request, result.map(|()| None));
            moved = true;
        }
        moved
    }

    /// Handles a receive whose buffer is unavailable. If its owner caused that, the message is
    /// discarded, and the receive ends with this error.
    fn fail_buffer(&mut self, receive: RequestId, error: Error) {
        let is_discarded = match self.operations.get_mut(&receive) {
            Some(Operation { kind: Kind::Recv(recv), .. }) => recv.discard(&error),
            _ => false,
        };
        if !is_discarded {
            self.end_all(error);
        }
    }
}

/// Returns whether these operations include one, and it has a deadline.
fn is_pending(operations: &FxHashMap<RequestId, Operation>) -> impl Fn(RequestId) -> bool {
    |request| operations.get(&request).is_some_and(|operation| operation.has_deadline)
}

/// Returns the credit that a message uses.
const fn credit_cost(length: usize) -> u64 {
    length as u64 + MESSAGE_OVERHEAD
}

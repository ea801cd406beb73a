//! The state machine behind the messages of one rank. It moves what can be moved, and never waits.
//!
//! One thread at a time holds it, together with the transport, and with its own call's memory as [`Mine`]. Everybody
//! else's bytes are in memory that the engine owns: a copy, or what came with a message in the background.

mod failure;
mod incoming;
mod operation;
mod outgoing;
mod peer;
mod post;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{DType, Error, Group, Interest, Invalid, Received, Result, Transport};

use super::frame::{ANNOUNCED_MAX, CREDIT, MESSAGE_OVERHEAD};
use super::matching::{Label, Matching};
use crate::RingConfig;
pub(crate) use operation::{Finished, Mine, Outcome, Payload, Recv, Send, Space, Ticket};
use operation::{Kind, Matched, Operation, misplaced};
use peer::Peer;

/// A message that nobody has received.
struct Message {
    label: Label,
    dtype: DType,
    /// In bytes.
    length: usize,
    body: Body,
    /// The receive that gets it once it has arrived.
    receive: Option<Ticket>,
}

/// Where the payload of such a message is.
enum Body {
    Whole(Vec<u8>),
    Arriving(Vec<u8>),
    /// With its sender, who calls it by this number.
    Announced(u64),
    /// In a send of this rank to itself.
    Local(Ticket),
}

pub(crate) struct Engine {
    group: Group,
    eager_bytes: usize,
    part_bytes: usize,
    announced_max: usize,
    /// By rank; what is at this rank's own place is never used.
    peers: Vec<Peer>,
    /// How many operations may have to do with any peer.
    anyone: usize,
    matching: Matching,
    messages: HashMap<Ticket, Message>,
    operations: HashMap<Ticket, Operation>,
    probes: BTreeSet<Ticket>,
    /// Operations whose deadline is not known yet.
    fresh: Vec<Ticket>,
    deadlines: BTreeSet<(Instant, Ticket)>,
    outcomes: HashMap<Ticket, Outcome>,
    finished: Vec<Finished>,
    /// How many operations in the background are under way.
    background: usize,
    /// Whether something ended that another thread may wait for.
    news: bool,
    /// Sends of this rank to itself, and the receives that get them.
    local: VecDeque<(Ticket, Ticket)>,
    /// How much memory messages of this rank to itself take.
    local_held: u64,
    next: Ticket,
    /// The peer that is looked at first, which changes, so that none is always last.
    turn: usize,
    poison: Option<Arc<Error>>,
}

impl Engine {
    pub(crate) fn new(group: Group, config: &RingConfig) -> Self {
        Self {
            group,
            eager_bytes: config.eager_bytes.min((CREDIT - MESSAGE_OVERHEAD) as usize),
            part_bytes: config.part_bytes.max(1),
            announced_max: ANNOUNCED_MAX,
            peers: (0..group.size()).map(|_| Peer::new()).collect(),
            anyone: 0,
            matching: Matching::default(),
            messages: HashMap::new(),
            operations: HashMap::new(),
            probes: BTreeSet::new(),
            fresh: Vec::new(),
            deadlines: BTreeSet::new(),
            outcomes: HashMap::new(),
            finished: Vec::new(),
            background: 0,
            news: false,
            local: VecDeque::new(),
            local_held: 0,
            next: 0,
            turn: 0,
            poison: None,
        }
    }

    /// A number that is greater than all before it.
    pub(crate) const fn number(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }

    /// Moves what can be moved: to and from the peers that some operation has to do with, or `everyone`. Tells whether
    /// anything moved.
    pub(crate) fn progress(
        &mut self,
        transport: &mut dyn Transport,
        mine: &mut Mine<'_>,
        everyone: bool,
    ) -> bool {
        self.watch_deadlines(transport.now());
        let mut moved = self.copy_local(mine);
        let size = self.group.size();
        self.turn = (self.turn + 1) % size;
        for peer in (self.turn..size).chain(0..self.turn) {
            if peer == self.group.rank() || self.poison.is_some() {
                continue;
            }
            let concerned = everyone || self.anyone > 0 || self.peers[peer].involved > 0;
            let result = if concerned { self.read(transport, peer, mine) } else { Ok(false) };
            moved |= self.noted(peer, result);
            let result = self.flush(transport, peer, mine);
            moved |= self.noted_sending(peer, result);
        }
        moved
    }

    /// What to wait for when nothing moves.
    pub(crate) fn interest(&self, interest: &mut Interest) {
        interest.clear();
        for rank in self.group.peers().filter(|&rank| self.peers[rank].is_there()) {
            interest.add_recv(rank);
            if self.peers[rank].has_outgoing() {
                interest.add_send(rank);
            }
        }
    }

    /// When some operation must end; `None` if none has a deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Whether operations in the background are under way.
    pub(crate) const fn has_background(&self) -> bool {
        self.background > 0
    }

    /// Whether something ended, since this was last asked, that another thread may wait for.
    pub(crate) const fn take_news(&mut self) -> bool {
        std::mem::replace(&mut self.news, false)
    }

    /// Operations in the background that ended and whose owners are to be told.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The outcome of a call of a thread that waits, as long as it has not been taken.
    pub(crate) fn outcome(&self, ticket: Ticket) -> Option<&Outcome> {
        self.outcomes.get(&ticket)
    }

    pub(crate) fn take_outcome(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.outcomes.remove(&ticket)
    }

    pub(crate) const fn poison_cause(&self) -> Option<&Arc<Error>> {
        self.poison.as_ref()
    }

    /// Files an operation under a number.
    fn begin(&mut self, ticket: Ticket, kind: Kind, timeout: Duration) {
        let operation = Operation { kind, timeout, deadline: None };
        *self.involved(&operation) += 1;
        self.background += usize::from(operation.is_owned());
        self.operations.insert(ticket, operation);
        self.fresh.push(ticket);
    }

    /// Who counts this operation.
    fn involved(&mut self, operation: &Operation) -> &mut usize {
        match operation.peer().and_then(|peer| self.peers.get_mut(peer)) {
            Some(peer) => &mut peer.involved,
            None => &mut self.anyone,
        }
    }

    /// Ends an operation, well or not.
    fn end(&mut self, ticket: Ticket, result: Result<Option<Received>>) {
        let Some(operation) = self.operations.remove(&ticket) else { return };
        *self.involved(&operation) -= 1;
        self.background -= usize::from(operation.is_owned());
        if let Some(deadline) = operation.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        self.news = true;
        match operation.kind {
            Kind::Send(Send { payload: Payload::Owned(message), .. }) => {
                self.finished.push(Finished::Sent(message, result.map(drop)));
            }
            Kind::Send(send) => {
                if send.awaited {
                    self.outcomes.insert(ticket, Outcome { result, staged: Vec::new() });
                }
            }
            Kind::Recv(recv) => {
                if recv.matched.is_none() {
                    self.matching.remove_receive(recv.pattern, ticket);
                }
                self.end_recv(ticket, recv.space, result);
            }
            Kind::Probe(_) => {
                self.probes.remove(&ticket);
                self.outcomes.insert(ticket, Outcome { result, staged: Vec::new() });
            }
        }
    }

    fn end_recv(&mut self, ticket: Ticket, space: Space, result: Result<Option<Received>>) {
        let staged = match space {
            Space::Owned(buffer) => {
                let none = || Error::Internal("a receive ended without a message".into());
                let result = result.and_then(|received| received.ok_or_else(none));
                self.finished.push(Finished::Received(buffer, result));
                return;
            }
            Space::Discarded { owner, reason, .. } => {
                self.finished.push(Finished::Received(owner, Err(reason)));
                return;
            }
            Space::Staged(bytes) => bytes,
            Space::RecvBuf => Vec::new(),
        };
        self.outcomes.insert(ticket, Outcome { result, staged });
    }

    /// Ends a receive whose message is there.
    fn end_received(&mut self, ticket: Ticket) {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get(&ticket) else { return };
        let received = recv.matched.map(|Matched { label, length }| {
            let Label { source, tag } = label;
            Received::new(source, tag, recv.dtype, length / recv.dtype.size())
        });
        self.end(ticket, Ok(received));
    }

    /// The receive that gets a message which has just come. Those that it does not fit fail, as they would if the
    /// message had been there before them.
    fn claim(&mut self, label: Label, dtype: DType, length: usize) -> Option<Ticket> {
        while let Some((receive, pattern)) = self.matching.receive_for(label) {
            self.matching.remove_receive(pattern, receive);
            match self.fits(receive, label, dtype, length) {
                Ok(()) => {
                    self.bind(receive, label, length);
                    return Some(receive);
                }
                Err(error) => self.end(receive, Err(error)),
            }
        }
        None
    }

    /// Refuses a message that a receive has no room for, or not the right one.
    fn fits(&self, receive: Ticket, label: Label, dtype: DType, length: usize) -> Result<()> {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get(&receive) else {
            return Err(Error::Internal("a receive that waits is not known".into()));
        };
        let (len, capacity, wanted) = (length / dtype.size(), recv.room, recv.dtype);
        if dtype == wanted && len <= capacity {
            return Ok(());
        }
        let Label { source, tag } = label;
        Err(Invalid::Message { source_rank: source, tag, len, dtype, capacity, wanted }.into())
    }

    fn bind(&mut self, receive: Ticket, label: Label, length: usize) {
        if let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&receive) {
            recv.matched = Some(Matched { label, length });
        }
    }

    /// Files a message that nobody waits for, and tells those who want to know of it.
    fn file(&mut self, label: Label, dtype: DType, length: usize, body: Body) -> Ticket {
        let number = self.number();
        self.messages.insert(number, Message { label, dtype, length, body, receive: None });
        self.matching.add_message(label, number);
        let probes: Vec<Ticket> = self.probes.iter().copied().collect();
        for probe in probes {
            let Some(Operation { kind: Kind::Probe(pattern), .. }) = self.operations.get(&probe) else {
                continue;
            };
            if let Some(received) = self.look(*pattern) {
                self.end(probe, Ok(Some(received)));
            }
        }
        number
    }

    /// Copies bytes that are there to the receive that they are for, and ends it.
    fn deliver(&mut self, receive: Ticket, bytes: &[u8], mine: &mut Mine<'_>) {
        let Some(Operation { kind: Kind::Recv(recv), .. }) = self.operations.get_mut(&receive) else {
            return;
        };
        match recv.space(receive, 0..bytes.len(), mine) {
            Ok(space) => {
                space.copy_from_slice(bytes);
                self.end_received(receive);
            }
            Err(error) => {
                self.without_space(receive, error);
                self.end_received(receive);
            }
        }
    }

    /// Copies messages of this rank to itself.
    fn copy_local(&mut self, mine: &mut Mine<'_>) -> bool {
        let mut moved = false;
        while let Some((ticket, receive)) = self.local.pop_front() {
            let Some(operation) = self.operations.remove(&ticket) else { continue };
            let lent = mine.send;
            let bytes = match &operation.kind {
                Kind::Send(send) => send.bytes(ticket, 0..send.length, lent),
                Kind::Recv(_) | Kind::Probe(_) => Err(misplaced()),
            };
            let result = bytes.map(|bytes| self.deliver(receive, bytes, mine));
            if let Err(error) = &result {
                self.end(receive, Err(error.clone()));
            }
            self.operations.insert(ticket, operation);
            self.end(ticket, result.map(|()| None));
            moved = true;
        }
        moved
    }

    /// A receive has no memory for what comes. If that is its owner's fault, what comes is thrown away, and the receive
    /// ends with this error.
    fn without_space(&mut self, receive: Ticket, error: Error) {
        let is_discarded = match self.operations.get_mut(&receive) {
            Some(Operation { kind: Kind::Recv(recv), .. }) => recv.discard(&error),
            _ => false,
        };
        if !is_discarded {
            self.end_all(error);
        }
    }
}

/// What a message takes of the credit of its sender.
const fn cost(length: usize) -> u64 {
    length as u64 + MESSAGE_OVERHEAD
}

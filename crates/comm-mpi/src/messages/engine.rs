//! The state machine of messages: it matches them with receives, and moves their bodies.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use comm_core::{
    DType, During, Error, Incoming, Invalid, Loss, Outgoing, Received, RecvFrom, Result, Source, TagMatch,
};

use super::frame::{Header, INLINE_MAX};
use crate::pause::Deadline;
use crate::raw::Operation;
use crate::session::{Session, Tag};

/// The largest piece of a body, in bytes: counts of MPI have 31 bits.
const PIECE_BYTES: usize = 256 << 20;

/// All messages of a communicator.
#[derive(Default)]
pub(super) struct Engine {
    /// Messages that no receive has matched, the oldest first.
    arrived: VecDeque<Arrived>,
    /// Receives that no message has matched, the oldest first.
    receives: Vec<PendingRecv>,
    bodies: Vec<PendingBody>,
    sends: Vec<PendingSend>,
    /// The outcomes of the receives of callers that wait.
    received: HashMap<u64, Result<Body>>,
    /// The outcomes of the sends of callers that wait.
    sent: HashMap<u64, Result<()>>,
    /// The last number of an operation.
    last: u64,
    /// The last tag of a body.
    last_body: i32,
}

struct Arrived {
    source: usize,
    header: Header,
    inline: Vec<u8>,
}

/// The body of a message, in pieces.
pub(super) struct Body {
    pub(super) envelope: Received,
    pub(super) pieces: Vec<Vec<u8>>,
}

/// The owner of an operation.
pub(super) enum Owner<B: ?Sized> {
    /// A caller that waits for the outcome.
    Caller,
    /// A buffer that belongs to the operation.
    Background(Box<B>),
}

pub(super) struct PendingRecv {
    pub(super) number: u64,
    pub(super) key: RecvFrom,
    /// The length of the buffer in elements.
    pub(super) capacity: usize,
    pub(super) dtype: DType,
    pub(super) deadline: Deadline,
    pub(super) owner: Owner<dyn Incoming>,
}

struct PendingBody {
    number: u64,
    envelope: Received,
    pieces: Vec<Operation<Vec<u8>>>,
    deadline: Deadline,
    owner: Owner<dyn Incoming>,
}

/// A send in progress, without its owner.
#[derive(Debug)]
pub(super) struct StartedSend {
    to: usize,
    tag: u64,
    /// The tag of the body; 0 if there is none.
    body: i32,
    pieces: Vec<Operation<Vec<u8>>>,
    deadline: Deadline,
}

struct PendingSend {
    number: u64,
    started: StartedSend,
    owner: Owner<dyn Outgoing>,
}

/// A background operation that has ended. Its owner is told without the lock.
pub(super) enum Ended {
    Recv(Box<dyn Incoming>, Result<Body>),
    Send(Box<dyn Outgoing>, Result<()>),
}

/// A message to send.
pub(super) struct NewSend<'a> {
    pub(super) to: usize,
    pub(super) tag: u64,
    pub(super) dtype: DType,
    pub(super) bytes: &'a [u8],
    pub(super) deadline: Deadline,
}

impl Engine {
    /// Returns the number of a new operation.
    pub(super) const fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Starts to send a message, for [`Engine::add_send`].
    pub(super) fn start_send(&mut self, session: &Session, new: &NewSend<'_>) -> Result<StartedSend> {
        let len = new.bytes.len() / new.dtype.size();
        let is_inline = new.bytes.len() <= INLINE_MAX;
        let body = if is_inline { 0 } else { self.free_body()? };
        let header = Header { tag: new.tag, dtype: new.dtype, len, body };
        let (inline, rest) = if is_inline { (new.bytes, &[][..]) } else { (&[][..], new.bytes) };
        let mut pieces = vec![session.send_short(new.to, Tag::MESSAGE, &header.encode(inline))?];
        for piece in rest.chunks(PIECE_BYTES) {
            pieces.push(session.handle.send(new.to, body, piece.to_vec(), true)?);
        }
        Ok(StartedSend { to: new.to, tag: new.tag, body, pieces, deadline: new.deadline })
    }

    /// Adds a send that has started. Returns its number.
    pub(super) fn add_send(&mut self, started: StartedSend, owner: Owner<dyn Outgoing>) -> u64 {
        let number = self.next();
        self.sends.push(PendingSend { number, started, owner });
        number
    }

    /// Returns a tag that no body on its way has.
    fn free_body(&mut self) -> Result<i32> {
        let first = if self.last_body < Tag::BODIES { Tag::BODIES } else { self.last_body };
        let count = Tag::MAX - Tag::BODIES + 1;
        let next = |by: i32| Tag::BODIES + (first - Tag::BODIES + by) % count;
        let is_free = |tag: &i32| self.sends.iter().all(|send| send.started.body != *tag);
        let found = (1..=count).map(next).find(is_free);
        self.last_body = found.ok_or_else(|| {
            let detail = format!("{count} long messages wait for their receivers");
            Error::Backend { backend: crate::raw::BACKEND, code: 0, detail }
        })?;
        Ok(self.last_body)
    }

    /// Adds a receive.
    pub(super) fn recv(&mut self, recv: PendingRecv) {
        self.receives.push(recv);
    }

    /// Takes the outcome of a receive that has ended.
    pub(super) fn take_received(&mut self, number: u64) -> Option<Result<Body>> {
        self.received.remove(&number)
    }

    /// Takes the outcome of a send that has ended.
    pub(super) fn take_sent(&mut self, number: u64) -> Option<Result<()>> {
        self.sent.remove(&number)
    }

    /// Returns the envelope of the oldest message that matches.
    pub(super) fn find(&self, key: RecvFrom) -> Option<Received> {
        let matching = |message: &&Arrived| matches(key, message);
        self.arrived.iter().find(matching).map(|message| message.header.received(message.source))
    }

    /// Returns whether background operations are pending.
    pub(super) fn has_background(&self) -> bool {
        self.receives.iter().any(|recv| matches!(recv.owner, Owner::Background(_)))
            || self.bodies.iter().any(|body| matches!(body.owner, Owner::Background(_)))
            || self.sends.iter().any(|send| matches!(send.owner, Owner::Background(_)))
    }

    /// Returns whether operations of MPI are pending.
    pub(super) const fn is_pending(&self) -> bool {
        !self.sends.is_empty() || !self.bodies.is_empty()
    }

    /// Makes progress on all messages.
    ///
    /// # Errors
    /// The failure of messages.
    pub(super) fn progress(
        &mut self,
        session: &Session,
        now: Option<Instant>,
        ended: &mut Vec<Ended>,
    ) -> Result<()> {
        if let Some(cause) = session.messages.cause() {
            return Err(Error::clone(&cause));
        }
        // Read first: messages of a rank that has left arrived before.
        let left = now.map(|now| (session.ranks_that_left(), now));
        while let Some((source, message)) = session.recv_short(Tag::MESSAGE)? {
            let (header, inline) = Header::decode(source, &message)?;
            self.arrived.push_back(Arrived { source, header, inline });
        }
        self.match_all(session, ended)?;
        self.move_bodies(ended)?;
        self.complete_sends(ended)?;
        if let Some((left, now)) = left {
            self.check_deadlines(session, (&left, now), ended)?;
        }
        Ok(())
    }

    /// Matches messages, the oldest first, each with its oldest receive.
    fn match_all(&mut self, session: &Session, ended: &mut Vec<Ended>) -> Result<()> {
        let mut at = 0;
        while at < self.arrived.len() {
            let message = &self.arrived[at];
            let Some(found) = self.receives.iter().position(|recv| matches(recv.key, message)) else {
                at += 1;
                continue;
            };
            let recv = self.receives.remove(found);
            let Header { tag, dtype, len, .. } = message.header;
            if recv.dtype != dtype || recv.capacity < len {
                let source_rank = message.source;
                let (capacity, wanted) = (recv.capacity, recv.dtype);
                let error = Invalid::Message { source_rank, tag, len, dtype, capacity, wanted };
                // The message is kept for the next receive that matches it.
                self.end_recv(recv.number, recv.owner, Err(error.into()), ended);
                continue;
            }
            if let Some(message) = self.arrived.remove(at) {
                self.start_body(session, recv, message, ended)?;
            }
        }
        Ok(())
    }

    fn start_body(
        &mut self,
        session: &Session,
        recv: PendingRecv,
        message: Arrived,
        ended: &mut Vec<Ended>,
    ) -> Result<()> {
        let Arrived { source, header, inline } = message;
        let envelope = header.received(source);
        let PendingRecv { number, deadline, owner, .. } = recv;
        if header.body == 0 {
            self.end_recv(number, owner, Ok(Body { envelope, pieces: vec![inline] }), ended);
            return Ok(());
        }
        let total = header.bytes().unwrap_or(0);
        let lens = (0..total).step_by(PIECE_BYTES).map(|start| PIECE_BYTES.min(total - start));
        let pieces = lens.map(|len| session.handle.recv(source, header.body, len)).collect::<Result<_>>()?;
        self.bodies.push(PendingBody { number, envelope, pieces, deadline, owner });
        Ok(())
    }

    fn move_bodies(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        let mut at = 0;
        while at < self.bodies.len() {
            if !all_ended(&mut self.bodies[at].pieces)? {
                at += 1;
                continue;
            }
            let PendingBody { number, envelope, pieces, owner, .. } = self.bodies.remove(at);
            let pieces = pieces.into_iter().map(Operation::into_memory).collect::<Result<_>>()?;
            self.end_recv(number, owner, Ok(Body { envelope, pieces }), ended);
        }
        Ok(())
    }

    fn complete_sends(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        let mut at = 0;
        while at < self.sends.len() {
            if all_ended(&mut self.sends[at].started.pieces)? {
                let send = self.sends.remove(at);
                self.end_send(send.number, send.owner, Ok(()), ended);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Ends receives that no message can match any more, and returns an error if a message is late.
    fn check_deadlines(
        &mut self,
        session: &Session,
        (left, now): (&BTreeSet<usize>, Instant),
        ended: &mut Vec<Ended>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.receives.len() {
            match reason_to_give_up(session, left, (self.receives[at].key, self.receives[at].deadline), now) {
                None => at += 1,
                Some(error) => {
                    let recv = self.receives.remove(at);
                    self.end_recv(recv.number, recv.owner, Err(error), ended);
                }
            }
        }
        if let Some(body) = self.bodies.iter().find(|body| body.deadline.is_over(now)) {
            let (from, tag) = (body.envelope.source, body.envelope.tag);
            let (waiting_for, after) = (vec![from], body.deadline.after);
            return Err(Error::Timeout { waiting_for, after, during: During::Recv { from, tag } });
        }
        let sends = self.sends.iter().map(|send| &send.started);
        if let Some(send) = sends.into_iter().find(|send| send.deadline.is_over(now)) {
            let (to, tag) = (send.to, send.tag);
            let (waiting_for, after) = (vec![to], send.deadline.after);
            return Err(Error::Timeout { waiting_for, after, during: During::Send { to, tag } });
        }
        self.end_sends_to(session, left, ended);
        Ok(())
    }

    /// Ends sends to ranks that have closed the communicator. Their memory is never freed.
    fn end_sends_to(&mut self, session: &Session, left: &BTreeSet<usize>, ended: &mut Vec<Ended>) {
        let mut at = 0;
        while at < self.sends.len() {
            if !left.contains(&self.sends[at].started.to) {
                at += 1;
                continue;
            }
            session.abandon();
            let PendingSend { number, started: StartedSend { to, tag, .. }, owner } = self.sends.remove(at);
            let error = Error::PeerLost { peer: to, during: During::Send { to, tag }, loss: Loss::Finished };
            self.end_send(number, owner, Err(error), ended);
        }
    }

    /// Ends all operations with this error.
    pub(super) fn end_all(&mut self, session: &Session, error: &Error, ended: &mut Vec<Ended>) {
        if self.is_pending() {
            session.abandon();
        }
        for recv in std::mem::take(&mut self.receives) {
            self.end_recv(recv.number, recv.owner, Err(error.clone()), ended);
        }
        for body in std::mem::take(&mut self.bodies) {
            self.end_recv(body.number, body.owner, Err(error.clone()), ended);
        }
        for send in std::mem::take(&mut self.sends) {
            self.end_send(send.number, send.owner, Err(error.clone()), ended);
        }
    }

    /// Cancels background receives that no message has matched.
    pub(super) fn cancel_recvs(&mut self, ended: &mut Vec<Ended>) {
        for recv in std::mem::take(&mut self.receives) {
            match recv.owner {
                Owner::Caller => self.receives.push(recv),
                owner @ Owner::Background(_) => {
                    self.end_recv(recv.number, owner, Err(Error::Cancelled), ended)
                }
            }
        }
    }

    fn end_recv(
        &mut self,
        number: u64,
        owner: Owner<dyn Incoming>,
        outcome: Result<Body>,
        ended: &mut Vec<Ended>,
    ) {
        match owner {
            Owner::Caller => _ = self.received.insert(number, outcome),
            Owner::Background(buffer) => ended.push(Ended::Recv(buffer, outcome)),
        }
    }

    fn end_send(
        &mut self,
        number: u64,
        owner: Owner<dyn Outgoing>,
        outcome: Result<()>,
        ended: &mut Vec<Ended>,
    ) {
        match owner {
            Owner::Caller => _ = self.sent.insert(number, outcome),
            Owner::Background(buffer) => ended.push(Ended::Send(buffer, outcome)),
        }
    }
}

fn matches(key: RecvFrom, message: &Arrived) -> bool {
    let is_source = match key.source {
        Source::Rank(rank) => rank == message.source,
        Source::Any => true,
    };
    let is_tag = match key.tag {
        TagMatch::Is(tag) => tag == message.header.tag,
        TagMatch::Any => true,
    };
    is_source && is_tag
}

fn all_ended(pieces: &mut [Operation<Vec<u8>>]) -> Result<bool> {
    let mut all = true;
    for piece in pieces {
        all &= piece.test()?;
    }
    Ok(all)
}

/// Returns the error of a receive or probe whose deadline has passed, or whose senders have left.
pub(super) fn reason_to_give_up(
    session: &Session,
    left: &BTreeSet<usize>,
    (key, deadline): (RecvFrom, Deadline),
    now: Instant,
) -> Option<Error> {
    let RecvFrom { source: from, tag } = key;
    let during = || During::Await { from, tag };
    let lost = |peer| Error::PeerLost { peer, during: during(), loss: Loss::Finished };
    let group = session.group;
    match from {
        Source::Rank(rank) if left.contains(&rank) => return Some(lost(rank)),
        Source::Any if group.size() > 1 && group.peers().all(|peer| left.contains(&peer)) => {
            return group.peers().next().map(lost);
        }
        _ => {}
    }
    deadline.is_over(now).then(|| {
        let waiting_for = match from {
            Source::Rank(rank) => vec![rank],
            Source::Any => group.peers().collect(),
        };
        Error::Timeout { waiting_for, after: deadline.after, during: during() }
    })
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("arrived", &self.arrived.len()).finish_non_exhaustive()
    }
}

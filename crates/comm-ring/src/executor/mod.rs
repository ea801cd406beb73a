//! Executes the schedule of a collective over a transport.
//!
//! The executor is a state machine. [`Executor::progress`] moves whatever can move now and says what it waits for; it
//! never sleeps, and a send that cannot go on never keeps it from receiving. A step starts when no earlier unfinished
//! step conflicts with it; messages to one peer, and from one peer, keep the order of the schedule.

mod arrive;
mod begin;
mod buffers;
mod carry;
mod located;
mod window;

use std::borrow::Borrow;
use std::io::IoSlice;

use comm_core::{Action, Error, Interest, Lengths, Lent, Reduction, Result, Transport};

use arrive::{at_once, fill, reduce, whole_elements};
pub use buffers::Buffers;
pub(crate) use located::together;
pub use located::{Located, locate};
use window::{Stage, Window};

use crate::message::Header;

/// Messages of up to this size, header included, are received in one piece if they have arrived.
const AT_ONCE_BYTES: usize = 4096 + Header::BYTES;

/// How much a receive takes before it is another step's turn: a peer that goes on sending must not keep this rank from
/// sending, or the two would take turns at copying.
const TURN_BYTES: usize = 256 << 10;

/// What is the same for all steps of one call.
#[derive(Debug)]
pub struct Job {
    /// How contributions are combined, for collectives that reduce.
    pub reduction: Option<Reduction>,
    /// How many contributions there are.
    pub ranks: usize,
    /// The sequence number of the call.
    pub sequence: u64,
    /// The fingerprint of the call.
    pub fingerprint: u64,
}

impl Job {
    /// What stands before a message of the call.
    #[inline]
    const fn header(&self, payload_bytes: usize) -> Header {
        Header::new(self.sequence, payload_bytes as u64, self.fingerprint)
    }

    /// What a receive combines with, if it is one that does.
    #[inline]
    fn reduction_in(&self, action: Action) -> Result<Option<Reduction>> {
        match action {
            Action::RecvReduce { .. } => self.reduction.ok_or_else(no_reduction).map(Some),
            _ => Ok(None),
        }
    }
}

/// Why an executor stopped.
#[derive(Debug)]
pub enum Stop {
    /// The transport failed, or the schedule is wrong.
    Failed(Error),
    /// A peer sent a message of another call.
    Mismatch {
        /// The peer.
        from: usize,
        /// The number of the call that the peer is in.
        sequence: u64,
        /// The lengths, if they are all that differs.
        lengths: Option<Lengths>,
    },
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a round of progress came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Every step has finished.
    Done,
    /// Nothing can move before the interest is met. `moved` tells whether anything did move in this round.
    Blocked {
        /// Whether a byte moved or a step finished.
        moved: bool,
    },
}

/// The state of the call under way, and what persists between calls so that a call allocates nothing.
#[derive(Debug)]
pub struct Executor {
    window: Window,
    interest: Interest,
    /// Bytes accepted so far in the stream to each peer.
    accepted: Vec<u64>,
    /// In which pass an earlier step used the stream to, and from, a peer last.
    taken: Vec<Taken>,
    /// The number of passes so far: that of the pass under way.
    passes: u64,
    /// The number of the last call from which a message of each peer has arrived.
    heard: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    send: u64,
    recv: u64,
}

impl Executor {
    /// An executor for a transport to `ranks` ranks on which nothing was sent yet, with this many steps under way at
    /// once.
    #[must_use]
    pub fn new(ranks: usize, window: usize) -> Self {
        Self {
            window: Window::new(window),
            interest: Interest::with_room(ranks),
            accepted: vec![0; ranks],
            taken: vec![Taken::default(); ranks],
            passes: 0,
            heard: vec![0; ranks],
        }
    }

    /// Has this many steps under way at once from the next call on.
    pub fn set_window(&mut self, window: usize) {
        self.window = Window::new(window);
    }

    /// Forgets a call that failed or was given up.
    pub fn reset(&mut self) {
        self.window.clear();
    }

    /// What the last round of progress waits for.
    #[must_use]
    #[inline]
    pub const fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Whether a message of this call from this peer was received, or its header at least.
    #[must_use]
    pub fn has_heard(&self, peer: usize, sequence: u64) -> bool {
        self.heard.get(peer).is_some_and(|&heard| heard >= sequence)
    }

    /// Moves whatever can move. Called again, with the same arguments, until it is done. Steps may be kept elsewhere, and
    /// lent, or come one by one.
    ///
    /// # Errors
    /// [`Stop`]; the call cannot be continued afterwards.
    pub fn progress<S: Iterator<Item: Borrow<Located>> + ?Sized>(
        &mut self,
        transport: &mut dyn Transport,
        steps: &mut S,
        job: &Job,
        buffers: &mut Buffers<'_>,
    ) -> Result<Progress, Stop> {
        let mut any = false;
        loop {
            while self.window.is_empty()
                && let Some(step) = steps.next()
            {
                any |= self.begin(step.borrow(), transport, job, buffers)?;
            }
            while !self.window.is_full()
                && let Some(step) = steps.next()
            {
                self.window.push(step.borrow());
            }
            if self.window.is_empty() {
                self.window.clear();
                self.interest.clear();
                return Ok(Progress::Done);
            }
            if !self.pass(transport, job, buffers)? {
                return Ok(Progress::Blocked { moved: any });
            }
            any = true;
            self.window.retire();
        }
    }

    /// Tries every step in the window once. Returns whether anything moved.
    fn pass(
        &mut self,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &mut Buffers<'_>,
    ) -> Result<bool, Stop> {
        self.interest.clear();
        self.passes += 1;
        let mut moved = false;
        for at in self.window.unfinished() {
            moved |= self.attempt(at, transport, job, buffers)?;
        }
        Ok(moved)
    }

    /// Moves the step at `at` as far as it goes. Returns whether anything moved.
    fn attempt(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &mut Buffers<'_>,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let (stage, action) = (entry.stage, entry.located.action);
        match (stage, action) {
            (Stage::Accepted { until }, Action::Send { to }) => Ok(self.settle(at, transport, to, until)),
            (_, Action::Send { to }) => {
                let pass = self.passes;
                let first = std::mem::replace(&mut self.taken_by(to)?.send, pass) != pass;
                if !first || self.window.is_blocked(at) {
                    return Ok(false);
                }
                self.send(at, transport, job, buffers, to)
            }
            (_, Action::Recv { from } | Action::RecvReduce { from }) => {
                let pass = self.passes;
                let first = std::mem::replace(&mut self.taken_by(from)?.recv, pass) != pass;
                if !first || self.window.is_blocked(at) {
                    return Ok(false);
                }
                self.recv(at, transport, job, buffers, from)
            }
            (_, Action::Reduce { .. } | Action::Copy { .. } | Action::Finish) => {
                if self.window.is_blocked(at) {
                    return Ok(false);
                }
                local(&self.window.entry(at).located, job, buffers)?;
                self.window.finish(at);
                Ok(true)
            }
        }
    }

    #[inline]
    fn taken_by(&mut self, peer: usize) -> Result<&mut Taken> {
        self.taken.get_mut(peer).ok_or_else(|| no_rank(peer))
    }

    /// Sends as much of a message as goes, header and payload in one call.
    #[inline(never)]
    fn send(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &Buffers<'_>,
        to: usize,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let payload = buffers.read(entry.located.place, entry.located.bytes.range())?;
        if entry.moved == 0 {
            entry.header = job.header(payload.len()).encode();
        }
        let whole = Header::BYTES + payload.len();
        let before = entry.moved;
        while entry.moved < whole {
            let header = &entry.header[entry.moved.min(Header::BYTES)..];
            let rest = &payload[entry.moved.saturating_sub(Header::BYTES)..];
            let slices = [IoSlice::new(header), IoSlice::new(rest)];
            let sent = transport.try_send(to, if header.is_empty() { &slices[1..] } else { &slices })?;
            if sent == 0 {
                break;
            }
            entry.moved += sent;
        }
        let (sent, complete) = (entry.moved - before, entry.moved == whole);
        self.accepted[to] += sent as u64;
        if !complete {
            self.interest.add_send(to);
            return Ok(sent > 0);
        }
        self.taken_by(to)?.send = 0;
        let until = self.accepted[to];
        self.window.entry(at).stage = Stage::Accepted { until };
        self.settle(at, transport, to, until);
        Ok(true)
    }

    /// Finishes a send whose bytes the transport no longer needs. Returns whether it did.
    fn settle(&mut self, at: usize, transport: &dyn Transport, to: usize, until: u64) -> bool {
        let released = transport.released(to) >= until;
        if released {
            self.window.finish(at);
        } else {
            self.interest.add_send(to);
        }
        released
    }

    /// Receives as much of a message as has arrived.
    #[inline(never)]
    fn recv(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &mut Buffers<'_>,
        from: usize,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let before = entry.moved;
        let (payload, own) = buffers.received(&entry.located)?;
        let reduction = job.reduction_in(entry.located.action)?;
        if before == 0 && Header::BYTES + payload.len() <= AT_ONCE_BYTES {
            match at_once(transport, from, job, payload, own, reduction)? {
                Some(used) => entry.moved = used,
                None => {
                    self.interest.add_recv(from);
                    return Ok(false);
                }
            }
        }
        while entry.moved < Header::BYTES {
            match transport.try_recv(from, &mut entry.header[entry.moved..])? {
                0 => break,
                received => entry.moved += received,
            }
            if entry.moved == Header::BYTES {
                check(&Header::decode(&entry.header), job, payload.len(), from)?;
            }
        }
        let whole = Header::BYTES + payload.len();
        if (Header::BYTES..whole).contains(&entry.moved) {
            let done = entry.moved - Header::BYTES;
            let rest = &mut payload[done..];
            let turn_bytes = reduction.map_or(TURN_BYTES, |reduction| whole_elements(TURN_BYTES, reduction));
            let (turn, _) = rest.split_at_mut(rest.len().min(turn_bytes));
            entry.moved += match reduction {
                Some(reduction) => {
                    let own = own.map(|own| &own[done..]);
                    reduce(transport, from, turn, own, reduction, &mut entry.carry)?
                }
                None => fill(transport, from, turn)?,
            };
        }
        let (moved, complete) = (entry.moved > before, entry.moved == whole);
        if entry.moved >= Header::BYTES {
            self.heard[from] = job.sequence;
        }
        if complete {
            self.window.finish(at);
            self.taken_by(from)?.recv = 0;
        } else {
            self.interest.add_recv(from);
        }
        Ok(moved)
    }
}

/// Whether a message belongs to this step of this call.
#[inline]
fn check(header: &Header, job: &Job, length: usize, from: usize) -> Result<(), Stop> {
    let expected = job.header(length);
    if *header == expected { Ok(()) } else { Err(mismatch(header, expected, from)) }
}

#[cold]
fn mismatch(header: &Header, expected: Header, from: usize) -> Stop {
    let differs_in_length = *header == Header { length: header.length, ..expected };
    let lengths = differs_in_length.then_some(Lengths { expected: expected.length, sent: header.length });
    Stop::Mismatch { from, sequence: header.sequence, lengths }
}

/// Carries out a step that concerns no other rank.
fn local(located: &Located, job: &Job, buffers: &mut Buffers<'_>) -> Result<()> {
    let Located { action, place, .. } = *located;
    let (bytes, other) = (located.bytes.range(), located.other.range());
    match action {
        Action::Copy { from } => {
            let (into, from) = buffers.pair((place, bytes), (from, other))?;
            if into.len() != from.len() {
                return Err(Error::Internal("a schedule copies blocks to blocks of another size".into()));
            }
            into.copy_from_slice(from);
        }
        Action::Reduce { with } => {
            let (into, from) = buffers.pair((place, bytes), (with, other))?;
            job.reduction.ok_or_else(no_reduction)?.combine(into, None, Lent::from_slice(from));
        }
        Action::Finish => {
            if let Some(reduction) = job.reduction {
                reduction.finish(buffers.write(place, bytes)?, job.ranks);
            }
        }
        Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. } => {}
    }
    Ok(())
}

#[cold]
fn no_rank(rank: usize) -> Error {
    Error::Internal(format!("a schedule names rank {rank}"))
}

#[cold]
fn no_reduction() -> Error {
    Error::Internal("a schedule reduces in a call without an operator".into())
}

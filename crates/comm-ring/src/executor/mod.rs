//! Executes the schedule of a collective over a transport.
//!
//! The executor is a state machine. [`Executor::progress`] moves all bytes that can move now and
//! reports what it waits for; it never sleeps, and a blocked send never prevents it from receiving.
//! A step starts when no earlier unfinished step conflicts with it; messages to one peer, and from
//! one peer, keep the order of the schedule.

mod lower;
mod partial_element;
mod recv;
mod regions;
mod send;
mod start;
mod stores;
mod window;

use std::borrow::Borrow;
use std::ops::Range;

use comm_core::{
    Action, Error, Interest, Lengths, Place, RecvBuf, Reduction, Result, Transport, copy, copy_non_temporal,
};

pub use lower::{LoweredStep, lower, mark_only_reduced};
pub(crate) use recv::recv_bypassing;
use recv::{Arrived, recv_available, recv_eager, recv_reduce_available, recv_then_reduce, whole_elements};
pub use regions::Regions;
use stores::SharedStores;
use window::{EntryState, Window};

use crate::message::Header;
use crate::peer_table::PeerTable;

/// Messages of up to this size, including the header, are received in one operation if they have
/// arrived completely.
const EAGER_BYTES: usize = 4096 + Header::BYTES;

/// The most bytes that a receive takes before the next step runs: a peer that keeps sending must
/// not prevent this rank from sending, or the two would take turns copying.
const TURN_BYTES: usize = 256 << 10;

/// The reduction of a call.
#[derive(Debug)]
pub struct JobReduction {
    /// The reduction by most steps.
    plain: Reduction,
    /// The reduction by steps that combine blocks last.
    completing: Reduction,
    /// The number of contributions.
    ranks: usize,
}

impl JobReduction {
    /// Creates the reduction of the contributions of this many ranks.
    #[must_use]
    pub const fn new(reduction: Reduction, ranks: usize) -> Self {
        Self { plain: reduction, completing: reduction.completing(ranks), ranks }
    }

    /// Returns the reduction, as it was passed to [`new`](Self::new).
    #[must_use]
    pub const fn plain(&self) -> Reduction {
        self.plain
    }
}

/// The parameters of a call that all its steps share.
#[derive(Debug)]
pub struct Job<'a> {
    /// The reduction, for collectives that reduce.
    pub reduction: Option<&'a JobReduction>,
    /// The sequence number of the call.
    pub sequence: u64,
    /// The fingerprint of the call.
    pub fingerprint: u64,
    /// Whether the output is too large for the caches, and data that are received or copied into it
    /// are not read again.
    pub bypasses_caches: bool,
    /// Whether other ranks read the output in place.
    pub is_output_read: bool,
    /// Whether the ranks of the host can write results into this rank's buffer.
    pub has_window: bool,
    /// The part of the output from which sends put results into the windows of their receivers.
    pub results: Range<usize>,
    /// The number of polls of a receive for a short message before which nothing else can run.
    pub polls: u32,
}

impl Job<'_> {
    /// Returns the header of a message of the call.
    #[inline]
    const fn header(&self, payload_bytes: usize) -> Header {
        let hints = if self.has_window { Header::WINDOW } else { 0 };
        Header { hints, ..Header::new(self.sequence, payload_bytes as u64, self.fingerprint) }
    }

    /// Returns whether a step sends a result that may be put.
    #[inline]
    fn puts(&self, step: &LoweredStep) -> bool {
        let bytes = step.bytes.range();
        // In most calls there are no results, so this comes first.
        bytes.end <= self.results.end
            && self.results.start <= bytes.start
            && !bytes.is_empty()
            && step.place == Place::Output
    }

    /// Returns whether a receive is tried together with the next step, which alone reads the
    /// message. A rank that polls only once, because it shares its processor, rarely finds it
    /// there.
    #[inline]
    const fn may_join(&self, step: &LoweredStep) -> bool {
        step.is_only_reduced && self.polls > 1
    }

    /// Returns the reduction of a step, if it reduces.
    #[inline]
    fn reduction_in(&self, step: &LoweredStep) -> Result<Option<&Reduction>> {
        match step.action {
            Action::Reduce { .. } | Action::RecvReduce { .. } => {
                let JobReduction { plain, completing, .. } = self.reduction.ok_or_else(no_reduction)?;
                Ok(Some(if step.completes { completing } else { plain }))
            }
            _ => Ok(None),
        }
    }
}

/// The reason why an executor stopped.
#[derive(Debug)]
pub enum Stop {
    /// The transport failed, or the schedule is wrong.
    Failed(Error),
    /// A peer sent a message of a different call.
    Mismatch {
        /// The peer.
        from: usize,
        /// The sequence number of the peer's call.
        sequence: u64,
        /// The lengths, if the calls differ in nothing else.
        lengths: Option<Lengths>,
    },
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The result of [`Executor::progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Every step has finished.
    Done,
    /// Nothing can move until the transport is ready for the interest.
    Blocked {
        /// Whether a byte moved or a step finished during this call of `progress`.
        moved: bool,
    },
}

/// The state of the current call, and buffers that persist so that a call allocates nothing.
#[derive(Debug)]
pub struct Executor {
    window: Window,
    interest: Interest,
    /// The streams to and from each peer.
    streams: PeerTable<PeerStreams>,
    /// The number of passes so far, including the current one.
    passes: u64,
    stores: SharedStores,
    /// Whether the sender of the last message of the call has a window.
    sender_has_window: Option<bool>,
}

/// The state of the streams to and from a peer.
#[derive(Debug, Clone, Copy, Default)]
struct PeerStreams {
    /// The passes in which a step last claimed each stream: later steps must not overtake it.
    send_claimed: u64,
    recv_claimed: u64,
    /// The bytes that the transport has accepted so far.
    accepted: u64,
    /// The sequence number of the last call from which a message has arrived.
    last_seen: u64,
}

impl Executor {
    /// Creates an executor for a transport to `ranks` ranks on which nothing was sent yet. At most
    /// `window` steps are unfinished at once.
    #[must_use]
    pub fn new(ranks: usize, window: usize) -> Self {
        Self {
            window: Window::new(window),
            interest: Interest::with_capacity(ranks.min(Window::CAPACITY_MAX)),
            streams: PeerTable::new(ranks, PeerStreams::default()),
            passes: 0,
            stores: SharedStores::default(),
            sender_has_window: None,
        }
    }

    /// Sets the number of steps that may be unfinished at once, from the next call on.
    pub fn set_window(&mut self, window: usize) {
        self.window = Window::new(window);
    }

    /// Drops the state of a call that failed or was abandoned.
    pub fn reset(&mut self) {
        self.window.clear();
    }

    /// Returns the events that the executor waits for after the last [`progress`](Self::progress).
    #[must_use]
    #[inline]
    pub const fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Returns whether a message of this call, or at least its header, was received from the peer.
    #[must_use]
    pub fn has_seen(&self, peer: usize, sequence: u64) -> bool {
        self.streams.get(peer).is_some_and(|streams| streams.last_seen >= sequence)
    }

    /// Returns whether other ranks can write results into the buffer of the sender of the last
    /// message, and forgets it; `None` if none was received since the last time.
    pub const fn take_sender_has_window(&mut self) -> Option<bool> {
        self.sender_has_window.take()
    }

    /// Moves all bytes that can move. Must be called again with the same arguments until it is
    /// done. The iterator yields steps or references to them.
    ///
    /// # Errors
    /// [`Stop`]; the call cannot be continued afterwards.
    pub fn progress<S: Iterator<Item: Borrow<LoweredStep>> + ?Sized>(
        &mut self,
        transport: &mut dyn Transport,
        steps: &mut S,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<Progress, Stop> {
        let mut any = false;
        loop {
            while self.window.is_empty()
                && let Some(step) = steps.next()
            {
                let step = step.borrow();
                let reduce = if job.may_join(step) { steps.next() } else { None };
                any |= match reduce {
                    Some(reduce) => self.start_both(step, reduce.borrow(), transport, job, regions)?,
                    None => self.start(step, transport, job, regions)?,
                };
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
            if !self.pass(transport, job, regions)? {
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
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<bool, Stop> {
        self.interest.clear();
        self.passes += 1;
        let mut moved = false;
        for at in self.window.unfinished() {
            moved |= self.attempt(at, transport, job, regions)?;
        }
        Ok(moved)
    }

    /// Moves the step at `at` as far as possible. Returns whether anything moved.
    fn attempt(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let (stage, action) = (entry.state, entry.lowered.action);
        match (stage, action) {
            (EntryState::Accepted { until }, Action::Send { to }) => {
                Ok(self.try_complete(at, transport, to, until))
            }
            (_, Action::Send { to }) => {
                let pass = self.passes;
                let first = std::mem::replace(&mut self.peer(to)?.send_claimed, pass) != pass;
                if !first || self.window.is_blocked(at) {
                    return Ok(false);
                }
                self.send(at, transport, job, regions, to)
            }
            (_, Action::Recv { from } | Action::RecvReduce { from, .. }) => {
                let pass = self.passes;
                let first = std::mem::replace(&mut self.peer(from)?.recv_claimed, pass) != pass;
                if !first || self.window.is_blocked(at) {
                    return Ok(false);
                }
                self.recv(at, transport, job, regions, from)
            }
            (_, Action::Reduce { .. } | Action::Copy { .. } | Action::Finish) => {
                if self.window.is_blocked(at) {
                    return Ok(false);
                }
                local(&self.window.entry(at).lowered, job, regions)?;
                self.window.finish(at);
                Ok(true)
            }
        }
    }

    #[inline]
    fn peer(&mut self, peer: usize) -> Result<&mut PeerStreams> {
        self.streams.get_mut(peer).ok_or_else(|| no_rank(peer))
    }

    /// Receives as much of a message as has arrived.
    #[inline(never)]
    fn recv(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
        from: usize,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let before = entry.moved;
        let is_output = entry.lowered.place == Place::Output;
        let (payload, addend) = regions.recv(&entry.lowered)?;
        let reduction = job.reduction_in(&entry.lowered)?;
        if before == 0 && Header::BYTES + payload.len() <= EAGER_BYTES {
            let hint = &mut self.sender_has_window;
            match recv_eager(transport, from, job, payload, addend, reduction, hint)? {
                Arrived::All => entry.moved = Header::BYTES + payload.len(),
                Arrived::Part => {}
                Arrived::Nothing => {
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
                let hint = &mut self.sender_has_window;
                check(&Header::decode(&entry.header), job, payload.len(), from, hint)?;
            }
        }
        let whole = Header::BYTES + payload.len();
        if (Header::BYTES..whole).contains(&entry.moved) {
            let done = entry.moved - Header::BYTES;
            let turn_bytes = reduction.map_or(TURN_BYTES, |reduction| whole_elements(TURN_BYTES, reduction));
            let end = payload.len().min(done + turn_bytes);
            entry.moved += match (reduction, addend) {
                (None, _) if job.bypasses_caches && is_output => {
                    recv_bypassing(transport, from, &mut payload[done..end])?
                }
                (None, _) => recv_available(transport, from, &mut payload[done..end])?,
                (Some(reduction), Some(addend))
                    if !done.is_multiple_of(reduction.dtype().size())
                        || (entry.partial.is_empty() && transport.fill_buf_copies(from)) =>
                {
                    recv_then_reduce(transport, from, payload, (done, end), addend, reduction)?
                }
                (Some(reduction), addend) => {
                    let (turn, addend) = (&mut payload[done..end], addend.map(|addend| &addend[done..]));
                    let partial = &mut entry.partial;
                    let mut receive = |transport: &mut dyn Transport, reduction: &Reduction| {
                        recv_reduce_available(transport, from, turn, addend, reduction, partial)
                    };
                    if job.is_output_read && is_output {
                        self.stores.time(transport, reduction, receive)?
                    } else {
                        receive(transport, reduction)?
                    }
                }
            };
        }
        let (moved, complete) = (entry.moved > before, entry.moved == whole);
        if entry.moved >= Header::BYTES {
            let streams = self.peer(from)?;
            streams.last_seen = job.sequence;
            if complete {
                streams.recv_claimed = 0;
                self.window.finish(at);
                return Ok(moved);
            }
        }
        self.interest.add_recv(from);
        Ok(moved)
    }
}

/// Checks that a message belongs to this step of this call, and takes its hint.
#[inline]
fn check(
    header: &Header,
    job: &Job<'_>,
    length: usize,
    from: usize,
    sender_has_window: &mut Option<bool>,
) -> Result<(), Stop> {
    let expected = Header { hints: header.hints & Header::WINDOW, ..job.header(length) };
    if *header != expected {
        return Err(mismatch(header, expected, from));
    }
    *sender_has_window = Some(header.hints == Header::WINDOW);
    Ok(())
}

#[cold]
fn mismatch(header: &Header, expected: Header, from: usize) -> Stop {
    let differs_in_length = *header == Header { length: header.length, ..expected };
    let lengths = differs_in_length.then_some(Lengths { expected: expected.length, sent: header.length });
    Stop::Mismatch { from, sequence: header.sequence, lengths }
}

/// Runs a step that neither sends nor receives.
fn local(step: &LoweredStep, job: &Job<'_>, regions: &mut Regions<'_>) -> Result<()> {
    match step.action {
        Action::Copy { from } => {
            let (dst, src) = regions.pair(step, from)?;
            if dst.len() != src.len() {
                return Err(Error::Internal("a schedule copies blocks to blocks of a different size".into()));
            }
            if job.bypasses_caches && step.place == Place::Output {
                copy_non_temporal(dst, src);
            } else {
                copy(dst, src);
            }
        }
        Action::Reduce { with } => {
            let (dst, src) = regions.pair(step, with)?;
            job.reduction_in(step)?.ok_or_else(no_reduction)?.combine(dst, None, RecvBuf::from_slice(src));
        }
        Action::Finish => {
            if let Some(JobReduction { plain, ranks, .. }) = job.reduction {
                plain.finish(regions.write(step.place, step.bytes.range())?, *ranks);
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

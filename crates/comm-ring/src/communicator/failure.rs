//! Handles failures: reads reports of other ranks, finds the cause of a failure, and ends the
//! communicator.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Armed, Desync, During, Error, Invalid, Lengths, Loss, Result, Signature};

use super::patience::Patience;
use super::session::Session;
use crate::control::{Announce, Cause, ControlFrame, Event, PastCall};
use crate::executor::Stop;

/// The time for which a rank that fails tries to send its queued frames.
pub(super) const LINGER: Duration = Duration::from_millis(200);

/// The report of another rank that it has lost this one.
#[derive(Debug)]
pub(super) struct LossOfSelf {
    by: usize,
    detail: String,
}

/// An abort by another rank that concerns only calls that this rank has yet to make.
#[derive(Debug)]
pub(super) struct PendingAbort {
    /// The first call that cannot be completed.
    sequence: u64,
    pub(super) from: usize,
    pub(super) cause: Cause,
}

impl Session {
    /// Returns an error if a fatal error has occurred.
    #[inline]
    pub(super) fn usable(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    /// Makes every later call fail with this error, unless an earlier error already does. The
    /// current call is not complete.
    pub(super) fn poison(&mut self, error: &Error) {
        self.poison_from(self.history.last(), error);
    }

    /// Makes every later call fail with this error, unless an earlier error already does. Calls
    /// before number `sequence` are complete.
    fn poison_from(&mut self, sequence: u64, error: &Error) {
        if self.poison.is_none() {
            self.poison = Some(Arc::new(error.clone()));
            self.failed_in = Some(sequence);
        }
    }

    /// Returns whether this rank was finalized, or continues in a smaller group.
    pub(super) fn has_ended(&self) -> bool {
        let is_finalized = |error: &Arc<Error>| matches!(**error, Error::Invalid(Invalid::Finalized));
        self.has_shrunk || self.poison.as_ref().is_some_and(is_finalized)
    }

    /// Returns the number of the last call that this rank completed.
    pub(super) fn completed(&self) -> u64 {
        self.failed_in.map_or(self.history.last(), |sequence| sequence.saturating_sub(1))
    }

    /// Reads the control channel and handles its events.
    pub(super) fn handle_events(&mut self) -> Result<()> {
        self.poll_events();
        let mut events = std::mem::take(&mut self.events);
        // If a peer has aborted the communicator, that is the cause, whatever else was reported
        // before it.
        events.sort_by_key(|event| !matches!(event, Event::Abort { .. }));
        let mut result = Ok(());
        for event in events.drain(..) {
            if result.is_ok() {
                result = self.act(event);
            }
        }
        self.events = events;
        result
    }

    fn act(&mut self, event: Event) -> Result<()> {
        self.note_loss_of_self(&event);
        match event {
            // The rank that aborted in a later call has done its part of this one, so this one is
            // completed first.
            Event::Abort { from, sequence, cause } if sequence > self.history.last() => {
                if self.pending_abort.as_ref().is_none_or(|pending| sequence < pending.sequence) {
                    self.pending_abort = Some(PendingAbort { sequence, from, cause });
                }
                Ok(())
            }
            Event::Abort { from, cause, .. } => Err(self.reported(from, cause)),
            Event::Announce { from, announce } => {
                let ours = self.history.get(announce.sequence);
                if announce.question {
                    self.answer(from, announce.sequence);
                } else if !self.control.is_complete() && self.control.has_asked(self.history.last()) {
                    announce.waiting_for.iter().for_each(|&peer| self.ask_once(peer));
                }
                self.compare_past(from, &announce.past, announce.sequence)?;
                ours.map_or(Ok(()), |ours| self.compare(announce.sequence, &ours, from, announce.call))
            }
            Event::Goodbye { from, sequence, past } => {
                self.compare_past(from, &past, sequence.saturating_add(1))
            }
        }
    }

    /// Keeps the report that another rank has lost this one. This rank reports its own loss to the
    /// others, which must not take the rank that reported it for the cause.
    fn note_loss_of_self(&mut self, event: &Event) {
        if let Event::Abort { from, cause: Cause::Lost { peer, detail }, .. } = event
            && *peer == self.group.rank()
        {
            self.lost_by.get_or_insert_with(|| LossOfSelf { by: *from, detail: detail.clone() });
        }
    }

    /// Asks a peer for its call with this sequence number.
    pub(super) fn ask(&mut self, peer: usize, sequence: u64, ours: Signature) {
        self.send_announce(peer, sequence, ours, true);
    }

    /// Sends a peer this rank's call with this sequence number, and also the call in which this
    /// rank is blocked if that is a different one.
    fn answer(&mut self, peer: usize, sequence: u64) {
        let last = self.history.last();
        let is_elsewhere = sequence != last && !self.waiting_for().is_empty();
        for number in [Some(sequence), is_elsewhere.then_some(last)].into_iter().flatten() {
            if let Some(call) = self.history.get(number) {
                self.send_announce(peer, number, call, false);
            }
        }
    }

    fn send_announce(&mut self, peer: usize, sequence: u64, call: Signature, question: bool) {
        let past = self.history.before(sequence);
        let is_last = sequence == self.history.last();
        let mut waiting_for = if is_last { self.waiting_for() } else { Vec::new() };
        waiting_for.truncate(Announce::WAITING_MAX);
        let announce = Announce { sequence, question, call, waiting_for, past };
        self.control.send(peer, &ControlFrame::Announce(announce));
    }

    /// Returns an error if a call of another rank before number `end` differs from this rank's call
    /// with the same number. A rank that only sends in a call completes it without noticing a
    /// mismatch. The mismatch is detected here, in a later call or when a rank leaves.
    fn compare_past(&self, peer: usize, past: &[PastCall], end: u64) -> Result<()> {
        match self.history.difference(past, end) {
            Some((sequence, ours, theirs)) => self.compare(sequence, &ours, peer, theirs),
            None => Ok(()),
        }
    }

    /// Returns an error if another rank aborted in the current call.
    #[inline]
    pub(super) fn check_pending_abort(&self) -> Result<()> {
        let due = self.pending_abort.as_ref().filter(|pending| pending.sequence <= self.history.last());
        due.map_or(Ok(()), |pending| Err(self.reported(pending.from, pending.cause.clone())))
    }

    /// Compares the call that is starting with those that blocked ranks have announced under its
    /// number.
    pub(super) fn compare_with_announced(&mut self) -> Result<()> {
        let sequence = self.history.last();
        let Some(ours) = self.history.get(sequence) else { return Ok(()) };
        match self.control.contradiction(sequence, &ours) {
            Some((from, theirs)) => self.compare(sequence, &ours, from, theirs.clone()),
            None => Ok(()),
        }
    }

    fn compare(&self, sequence: u64, ours: &Signature, peer: usize, theirs: Signature) -> Result<()> {
        if *ours == theirs {
            return Ok(());
        }
        let (rank, ours) = (self.group.rank(), Some(ours.clone()));
        Err(Desync::new(sequence, (rank, ours), (peer, Some(theirs))).into())
    }

    /// Aborts if one of these ranks has died, or is found to have died within `at_most`. Must be
    /// called between two calls.
    pub(super) fn check_alive(&mut self, ranks: &[usize], at_most: Duration) -> Result<()> {
        match self.poison.as_deref() {
            Some(error @ Error::PeerLost { peer, .. }) if ranks.contains(peer) => return Err(error.clone()),
            Some(_) => return Ok(()),
            None => {}
        }
        let outcome = self.control.arm().and_then(|_| {
            self.await_cause(at_most, |session| match session.dead_among(ranks) {
                Some((peer, loss)) => Err(session.lost(peer, loss)),
                None => Ok(false),
            })
        });
        outcome.map_err(|error| self.give_up_idle(error))
    }

    /// Returns an error if the next call is already known to fail. Must be called between two
    /// calls.
    pub(super) fn check_between_calls(&mut self) -> Result<()> {
        self.usable()?;
        let found = self.control.arm().and_then(|_| self.handle_events()).and_then(|()| {
            let next = self.history.last() + 1;
            match self.pending_abort.take_if(|pending| pending.sequence <= next) {
                Some(PendingAbort { from, cause, .. }) => Err(self.reported(from, cause)),
                None => Ok(()),
            }
        });
        let found = found.and_then(|()| match self.control.dead() {
            Some((peer, loss)) => Err(self.lost(peer, loss)),
            None => Ok(()),
        });
        found.map_err(|error| {
            let error = match error {
                Error::PeerLost { peer, loss, .. } => Error::PeerLost { peer, during: During::Idle, loss },
                other => other,
            };
            self.give_up_idle(error)
        })
    }

    /// Returns one of these ranks that has died, according to this rank's own streams or the report
    /// of an aborting rank.
    fn dead_among(&self, ranks: &[usize]) -> Option<(usize, Loss)> {
        let reported = || match &self.pending_abort {
            Some(PendingAbort { from, cause: Cause::Lost { peer, detail }, .. }) if ranks.contains(peer) => {
                Some((*peer, Loss::Reported { by: *from, detail: detail.clone() }))
            }
            _ => None,
        };
        self.control.deaths().find(|(rank, _)| ranks.contains(rank)).or_else(reported)
    }

    /// Returns an error if a member can no longer take part in the current call.
    pub(super) fn check_members(&self) -> Result<()> {
        self.control.lost(self.history.last()).map_or(Ok(()), |(peer, loss)| Err(self.lost(peer, loss)))
    }

    fn lost(&self, peer: usize, loss: Loss) -> Error {
        Error::PeerLost { peer, during: self.during(), loss }
    }

    /// Converts another rank's report to an error of this one.
    pub(super) fn reported(&self, by: usize, cause: Cause) -> Error {
        match cause {
            Cause::Lost { peer, detail } if peer != self.group.rank() => {
                self.lost(peer, Loss::Reported { by, detail })
            }
            Cause::Lost { detail, .. } => Error::Aborted { by, reason: about_this_rank(&detail) },
            Cause::Timeout { millis, waiting_for } => {
                Error::Timeout { waiting_for, after: Duration::from_millis(millis), during: self.during() }
            }
            Cause::Desync { sequence, ranks: [rank, peer], calls: [ours, theirs], lengths } => {
                let mut desync = Desync::new(sequence, (rank, ours), (peer, theirs));
                desync.lengths = lengths;
                desync.into()
            }
            Cause::Aborted { by, reason } => Error::Aborted { by, reason },
        }
    }

    /// Finds the cause of a stopped call: the rank whose stream broke first need not be the one
    /// that failed first.
    pub(super) fn find_cause(&mut self, stop: Stop) -> Error {
        let found = self.cause_of(stop);
        // The failure of another rank in a later call may show up in this one as a different error.
        match self.pending_abort.take() {
            Some(PendingAbort { from, cause, .. }) => self.reported(from, cause),
            None => found,
        }
    }

    fn cause_of(&mut self, stop: Stop) -> Error {
        match stop {
            // A report of another rank already names the cause.
            Stop::Failed(error @ Error::PeerLost { loss: Loss::Reported { .. }, .. }) => error,
            // Nothing came before it. This rank has ended the stream, which a peer that is alive
            // may take for the loss of this rank.
            Stop::Failed(Error::PeerLost {
                peer,
                loss: loss @ (Loss::Corrupted(_) | Loss::HostUnreachable { .. }),
                ..
            }) => self.lost(peer, loss),
            Stop::Failed(Error::PeerLost { peer, loss, .. }) => {
                let outcome = self.await_cause(self.config.diagnosis, |session| {
                    session.check_members()?;
                    Ok(session.control.has_ended(peer))
                });
                outcome.err().unwrap_or_else(|| self.lost(peer, loss))
            }
            Stop::Failed(error) => error,
            Stop::Mismatch { from, sequence, lengths } => self.find_mismatch(from, sequence, lengths),
        }
    }

    /// Asks a peer that sent a message of a different call which call it made.
    fn find_mismatch(&mut self, from: usize, theirs: u64, lengths: Option<Lengths>) -> Error {
        // The rank that is ahead has already made the other's call, and completed it without
        // noticing the mismatch.
        let sequence = theirs.clamp(1, self.history.last().max(1));
        let Some(call) = self.history.get(sequence).or_else(|| self.history.get(self.history.last())) else {
            let loss = Loss::Protocol(format!("a message of call {theirs}, before any call was made"));
            return Error::PeerLost { peer: from, during: During::Idle, loss };
        };
        tracing::debug!(from, sequence, theirs, "a message belongs to another call");
        let (rank, ours) = (self.group.rank(), Some(call.clone()));
        if lengths.is_some() {
            // The signatures are equal, so there is nothing to ask.
            let mut desync = Desync::new(sequence, (rank, ours), (from, Some(call)));
            desync.lengths = lengths;
            return desync.into();
        }
        self.ask(from, sequence, call);
        let outcome = self.await_cause(self.config.diagnosis, |session| Ok(session.control.has_ended(from)));
        outcome.err().unwrap_or_else(|| {
            let theirs = self.control.past_call(from, sequence).cloned();
            Desync::new(sequence, (rank, ours), (from, theirs)).into()
        })
    }

    /// Reads the control channel until a peer reports a cause, `enough` returns `true`, or
    /// `at_most` has passed, in which this rank was not stopped. A reported cause is returned as an
    /// error.
    pub(super) fn await_cause(
        &mut self,
        at_most: Duration,
        enough: impl Fn(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        self.await_cause_within(Patience::new(at_most, self.data.now()), enough)
    }

    /// As [`await_cause`](Self::await_cause).
    pub(super) fn await_cause_within(
        &mut self,
        mut patience: Patience,
        enough: impl Fn(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        loop {
            self.handle_events()?;
            if enough(self)? {
                return Ok(());
            }
            if patience.left(self.data.now()).is_zero() {
                return Ok(());
            }
            if self.control.arm()? == Armed::Sleep {
                self.control.sleep(None, patience.turn())?;
            }
        }
    }

    /// Ends the communicator in the current call.
    pub(super) fn give_up(&mut self, error: Error) -> Error {
        self.give_up_from(self.history.last(), error)
    }

    /// Ends the communicator between two calls.
    pub(super) fn give_up_idle(&mut self, error: Error) -> Error {
        self.give_up_from(self.history.last() + 1, error)
    }

    /// Ends the communicator: reports the cause and the first failed call to all peers, and fails
    /// every later call.
    fn give_up_from(&mut self, sequence: u64, error: Error) -> Error {
        self.record_failure(sequence, &error);
        self.drop_call();
        self.poison_from(sequence, &error);
        self.control.send_all(&ControlFrame::Abort { sequence, cause: self.cause(&error) });
        self.flush(LINGER);
        self.report();
        error
    }

    /// Returns the cause to report to other ranks for an error.
    fn cause(&self, error: &Error) -> Cause {
        match error {
            // A report that is passed on stays as it is.
            Error::PeerLost { peer, loss: Loss::Reported { detail, .. }, .. } => {
                Cause::Lost { peer: *peer, detail: detail.clone() }
            }
            Error::PeerLost { peer, loss, .. } => Cause::Lost { peer: *peer, detail: loss.to_string() },
            Error::Timeout { waiting_for, after, .. } => Cause::Timeout {
                millis: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                waiting_for: waiting_for.clone(),
            },
            Error::Desync(desync) => Cause::Desync {
                sequence: desync.sequence,
                ranks: [desync.rank, desync.peer],
                calls: [desync.ours.clone(), desync.theirs.clone()],
                lengths: desync.lengths,
            },
            Error::Aborted { by, reason } => match &self.lost_by {
                Some(loss) if loss.by == *by => {
                    Cause::Lost { peer: self.group.rank(), detail: loss.detail.clone() }
                }
                _ => Cause::Aborted { by: *by, reason: reason.clone() },
            },
            other => Cause::Aborted { by: self.group.rank(), reason: other.to_string() },
        }
    }
}

/// Makes this rank the subject of another one's report about it: a [`Loss`] begins with "it" or
/// "its", which would be the other rank in the error of this one.
fn about_this_rank(detail: &str) -> String {
    match detail.split_once(' ') {
        Some(("it", rest)) => format!("this rank {rest}"),
        Some(("its", rest)) => format!("this rank's {rest}"),
        _ => format!("it lost the connection to this rank: {detail}"),
    }
}

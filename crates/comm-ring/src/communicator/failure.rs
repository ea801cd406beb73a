//! What a rank hears from others about failure, how it finds the cause of its own, and how it gives up.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Armed, Desync, During, Error, Invalid, Lengths, Loss, Result, Signature, Transport};

use super::session::Session;
use crate::control::{Announce, Cause, Event, Frame, PastCall};
use crate::executor::Stop;
use crate::wait::wait_for;

/// How long a rank that fails or leaves tries to get its last words out.
const LINGER: Duration = Duration::from_millis(200);

/// A time that can be added to any instant.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// What another rank said as it gave up, for calls that this rank has yet to make.
#[derive(Debug)]
pub(super) struct PendingAbort {
    /// The first call that cannot be completed.
    sequence: u64,
    from: usize,
    cause: Cause,
}

impl<T: Transport> Session<T> {
    /// Refuses to go on after a fatal error.
    #[inline]
    pub(super) fn usable(&self) -> Result<()> {
        self.poison.as_ref().map_or(Ok(()), |first| Err(Error::Poisoned(Arc::clone(first))))
    }

    /// Makes every later call fail with this error. The first one stays.
    pub(super) fn poison(&mut self, error: &Error) {
        self.poison.get_or_insert_with(|| Arc::new(error.clone()));
    }

    /// Reads the control channel and acts on what it says.
    pub(super) fn handle_events(&mut self) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.control.poll(&mut events);
        // If the group is given up already, that is the cause, whatever else was said before.
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
        match event {
            // Who gave up later has done its part of this call, so this one is completed first.
            Event::Abort { from, sequence, cause } if sequence > self.history.last() => {
                if self.pending_abort.as_ref().is_none_or(|pending| sequence < pending.sequence) {
                    self.pending_abort = Some(PendingAbort { sequence, from, cause });
                }
                Ok(())
            }
            Event::Abort { from, cause, .. } => Err(self.reported(from, cause)),
            Event::Announce { from, announce } => {
                let ours = self.history.get(announce.sequence).cloned();
                if announce.question {
                    self.answer(from, announce.sequence);
                }
                self.compare_past(from, &announce.past, announce.sequence)?;
                ours.map_or(Ok(()), |ours| self.compare(announce.sequence, &ours, from, announce.call))
            }
            Event::Goodbye { from, sequence, past } => {
                self.compare_past(from, &past, sequence.saturating_add(1))
            }
        }
    }

    /// Asks a peer what it called under this number.
    pub(super) fn ask(&mut self, peer: usize, sequence: u64, ours: Signature) {
        self.send_announce(peer, sequence, ours, true);
    }

    /// Tells a peer what this rank called under this number, and in which call it is blocked, if in another one.
    fn answer(&mut self, peer: usize, sequence: u64) {
        let last = self.history.last();
        let is_elsewhere = sequence != last && !self.waiting_for().is_empty();
        for number in [Some(sequence), is_elsewhere.then_some(last)].into_iter().flatten() {
            if let Some(call) = self.history.get(number).cloned() {
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
        self.control.send(peer, &Frame::Announce(announce));
    }

    /// Fails if a call of another rank before number `end` is not what this rank made under its number. A rank that only
    /// sends in a call ends it without noticing: it shows here, in a later call or when a rank leaves.
    fn compare_past(&self, peer: usize, past: &[PastCall], end: u64) -> Result<()> {
        match self.history.difference(past, end) {
            Some((sequence, ours, theirs)) => self.compare(sequence, &ours, peer, theirs),
            None => Ok(()),
        }
    }

    /// Fails if another rank gave up in the call under way.
    #[inline]
    pub(super) fn check_pending_abort(&self) -> Result<()> {
        let due = self.pending_abort.as_ref().filter(|pending| pending.sequence <= self.history.last());
        due.map_or(Ok(()), |pending| Err(self.reported(pending.from, pending.cause.clone())))
    }

    /// Compares the call that starts with what blocked ranks announced under its number before.
    pub(super) fn compare_with_announced(&mut self) -> Result<()> {
        let sequence = self.history.last();
        let Some(ours) = self.history.get(sequence) else { return Ok(()) };
        match self.control.contradiction(sequence, ours) {
            Some((from, theirs)) => self.compare(sequence, ours, from, theirs.clone()),
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

    /// Gives up if one of these ranks is known to have died, or becomes known to within this time. To be called between
    /// two calls.
    pub(super) fn check_alive(&mut self, ranks: &[usize], at_most: Duration) -> Result<()> {
        match self.poison.as_deref() {
            Some(error @ Error::PeerLost { peer, .. }) if ranks.contains(peer) => return Err(error.clone()),
            Some(_) => return Ok(()),
            None => {}
        }
        let heard = self.control.arm().and_then(|_| {
            self.await_cause(at_most, |session| match session.dead_among(ranks) {
                Some((peer, loss)) => Err(session.lost(peer, loss)),
                None => Ok(false),
            })
        });
        heard.map_err(|error| self.give_up_idle(error))
    }

    /// One of these ranks that has died, as far as this rank has seen, or another one has said as it gave up.
    fn dead_among(&self, ranks: &[usize]) -> Option<(usize, Loss)> {
        let reported = || match &self.pending_abort {
            Some(PendingAbort { from, cause: Cause::Lost { peer, detail }, .. }) if ranks.contains(peer) => {
                Some((*peer, Loss::Reported { by: *from, detail: detail.clone() }))
            }
            _ => None,
        };
        self.control.deaths().find(|(rank, _)| ranks.contains(rank)).or_else(reported)
    }

    /// Fails if a member can no longer take part in the call under way.
    pub(super) fn check_members(&self) -> Result<()> {
        self.control.lost(self.history.last()).map_or(Ok(()), |(peer, loss)| Err(self.lost(peer, loss)))
    }

    fn lost(&self, peer: usize, loss: Loss) -> Error {
        Error::PeerLost { peer, during: self.during(), loss }
    }

    /// The error that another rank's report comes to on this one.
    fn reported(&self, by: usize, cause: Cause) -> Error {
        match cause {
            Cause::Lost { peer, detail } if peer != self.group.rank() => {
                self.lost(peer, Loss::Reported { by, detail })
            }
            Cause::Lost { detail, .. } => {
                Error::Aborted { by, reason: format!("it lost the connection to this rank: {detail}") }
            }
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

    /// Finds the cause behind what stopped a call: the rank whose stream broke first need not be the culprit.
    pub(super) fn find_cause(&mut self, stop: Stop) -> Error {
        let found = self.cause_of(stop);
        // What another rank gave up for in a later call comes to show in this one too, in one way or another.
        match self.pending_abort.take() {
            Some(PendingAbort { from, cause, .. }) => self.reported(from, cause),
            None => found,
        }
    }

    fn cause_of(&mut self, stop: Stop) -> Error {
        match stop {
            // What another rank reported is the cause already.
            Stop::Failed(error @ Error::PeerLost { loss: Loss::Reported { .. }, .. }) => error,
            Stop::Failed(Error::PeerLost { peer, loss, .. }) => {
                let heard = self.await_cause(self.config.diagnosis, |session| {
                    session.check_members()?;
                    Ok(session.control.has_ended(peer))
                });
                heard.err().unwrap_or_else(|| self.lost(peer, loss))
            }
            Stop::Failed(error) => error,
            Stop::Mismatch { from, sequence, lengths } => self.find_mismatch(from, sequence, lengths),
        }
    }

    /// Asks a peer that sent a message of another call what it called.
    fn find_mismatch(&mut self, from: usize, theirs: u64, lengths: Option<Lengths>) -> Error {
        // Whoever is ahead was in the other's call before, and went through it without noticing.
        let sequence = theirs.clamp(1, self.history.last().max(1));
        let Some(call) =
            self.history.get(sequence).or_else(|| self.history.get(self.history.last())).cloned()
        else {
            let loss = Loss::Garbage(format!("a message of call {theirs}, before any call was made"));
            return Error::PeerLost { peer: from, during: During::Idle, loss };
        };
        tracing::debug!(from, sequence, theirs, "a message belongs to another call");
        let (rank, ours) = (self.group.rank(), Some(call.clone()));
        if lengths.is_some() {
            // It is in the same call, as far as a description tells: there is nothing to ask.
            let mut desync = Desync::new(sequence, (rank, ours), (from, Some(call)));
            desync.lengths = lengths;
            return desync.into();
        }
        self.ask(from, sequence, call);
        let heard = self.await_cause(self.config.diagnosis, |session| Ok(session.control.has_ended(from)));
        heard.err().unwrap_or_else(|| {
            let theirs = self.control.past_call(from, sequence).cloned();
            Desync::new(sequence, (rank, ours), (from, theirs)).into()
        })
    }

    /// Listens to the control channel until somebody reports a cause, which is the error, or `enough` says so, or the
    /// time is over.
    pub(super) fn await_cause(
        &mut self,
        at_most: Duration,
        enough: impl Fn(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = self.data.now() + at_most;
        loop {
            self.handle_events()?;
            if enough(self)? {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(self.data.now());
            if left.is_zero() {
                return Ok(());
            }
            if self.control.arm()? == Armed::Sleep {
                wait_for([self.control.descriptor()], left)?;
            }
        }
    }

    /// Ends the communicator in the call under way.
    pub(super) fn give_up(&mut self, error: Error) -> Error {
        self.give_up_from(self.history.last(), error)
    }

    /// Ends the communicator between two calls.
    pub(super) fn give_up_idle(&mut self, error: Error) -> Error {
        self.give_up_from(self.history.last() + 1, error)
    }

    /// Ends the communicator: tells everybody why, and from which call on, and fails every later call.
    fn give_up_from(&mut self, sequence: u64, error: Error) -> Error {
        self.drop_call();
        self.poison(&error);
        self.control.send_all(&Frame::Abort { sequence, cause: self.cause(&error) });
        self.flush();
        error
    }

    /// What to tell other ranks of an error.
    fn cause(&self, error: &Error) -> Cause {
        match error {
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
            Error::Aborted { by, reason } => Cause::Aborted { by: *by, reason: reason.clone() },
            other => Cause::Aborted { by: self.group.rank(), reason: other.to_string() },
        }
    }

    /// Leaves without waiting for the others. What is wrong is in the log, as there is nobody to return it to.
    pub(super) fn close(&mut self) {
        if self.poison.is_none()
            && let Err(error) = self.leave()
        {
            tracing::error!(%error, "left a group in which something is wrong");
            self.give_up_idle(error);
        }
    }

    /// Leaves, and waits until all others have left, too.
    pub(super) fn finalize(&mut self, timeout: Duration) -> Result<()> {
        match self.leave().and_then(|()| self.await_goodbyes(timeout)) {
            Ok(()) => {
                self.poison(&Invalid::Finalized.into());
                Ok(())
            }
            Err(error) => Err(self.give_up_idle(error)),
        }
    }

    /// Tells everybody that this rank leaves in order, unless a member died, or ranks did not make the same calls. A
    /// program that meets a death in another group, or in a message, often ends here before it makes another call.
    fn leave(&mut self) -> Result<()> {
        // Only this looks whether the processes of the others live, where memory is shared.
        self.control.arm()?;
        self.handle_events()?;
        if let Some((peer, loss)) = self.control.dead() {
            return Err(Error::PeerLost { peer, during: During::Finalize, loss });
        }
        self.check_unexpected(self.data.now()).map_err(|stop| self.find_cause(stop))?;
        let sequence = self.history.last();
        let past = self.history.before(sequence + 1);
        self.control.send_all(&Frame::Goodbye { sequence, past });
        self.flush();
        Ok(())
    }

    fn await_goodbyes(&mut self, timeout: Duration) -> Result<()> {
        self.await_cause(timeout.min(FOREVER), |session| {
            session.check_leaving()?;
            Ok(session.control.present().is_empty())
        })?;
        let waiting_for = self.control.present();
        if waiting_for.is_empty() {
            return Ok(());
        }
        Err(Error::Timeout { waiting_for, after: timeout, during: During::Finalize })
    }

    /// Fails if another rank gave up, died, or left after another number of calls than this one.
    fn check_leaving(&self) -> Result<()> {
        if let Some(pending) = &self.pending_abort {
            return Err(self.reported(pending.from, pending.cause.clone()));
        }
        let last = self.history.last();
        if let Some((peer, loss)) = self.control.lost(last) {
            return Err(Error::PeerLost { peer, during: During::Finalize, loss });
        }
        let Some(peer) = self.group.peers().find(|&peer| self.control.left_after(peer) > Some(last)) else {
            return Ok(());
        };
        let (sequence, rank) = (last + 1, self.group.rank());
        let theirs = self.control.past_call(peer, sequence).cloned();
        Err(Desync::new(sequence, (rank, None), (peer, theirs)).into())
    }

    /// Gets queued words out, as far as that goes in a short time.
    fn flush(&mut self) {
        let deadline = self.data.now() + LINGER;
        let mut ignored = Vec::new();
        while !self.control.is_flushed() && self.data.now() < deadline {
            self.control.poll(&mut ignored);
            ignored.clear();
            let asleep = self.control.arm().is_ok_and(|armed| armed == Armed::Sleep);
            if asleep && wait_for([self.control.descriptor()], LINGER).is_err() {
                return;
            }
        }
    }
}

//! The order of events: which meeting a process takes part in, and how it leaves it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{DEFAULT_TIMEOUT, Error, Group, GroupId, Refusal, Result, Store};

use crate::meeting::{Meeting, Phase, malformed};
use crate::member::Member;
use crate::outcome::{Failure, Outcome};
use crate::own::{Own, WORLD_SIZE};
use crate::random::random_bytes;
use crate::settings::{Difference, escape};
use crate::watch::Watch;

/// How long a rank that sees another one go waits to hear why, before it says that this rank was lost. A rank that left for
/// another's sake has told whose; if its process has ended, the store tells.
const CAUSE_PATIENCE: Duration = Duration::from_secs(1);

/// How long the rank that serves the store keeps it after a failure for ranks that come late, which could otherwise not
/// know why there is none.
const LATE_PATIENCE: Duration = Duration::from_secs(1);

/// Ranks that have found each other through a store.
///
/// While it lives, the store tells all other ranks if this process ends, provided that the store can notice it:
/// [`Store::register_last_will`]. In other stores the others wait until their deadline.
pub struct Rendezvous<'a> {
    store: &'a dyn Store,
    own: Arc<Own>,
    /// Which of the meetings of this job and round this is.
    number: u64,
    /// `None` if the store cannot notice that a process has ended.
    watch: Option<Arc<Watch>>,
}

impl std::fmt::Debug for Rendezvous<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { own, number, watch, .. } = self;
        let mut shown = f.debug_struct("Rendezvous");
        shown.field("own", own).field("number", number).field("watch", watch).finish_non_exhaustive()
    }
}

/// How a process came out of a meeting.
enum Passed {
    /// With what each rank said.
    With(Vec<String>),
    /// It goes on to the next one.
    On,
}

impl<'a> Rendezvous<'a> {
    /// Waits until all ranks have come with equal settings. Returns the line that each of them gives as its `record`, in
    /// the order of ranks. A record has no end of a line. A rank that has an error in place of a record, as it cannot be
    /// reached, returns it, and the others learn of it.
    ///
    /// # Errors
    /// [`Error::Handshake`] on every rank, without waiting for the deadline, with [`Refusal::Setting`] or
    /// [`Refusal::WorldSize`] if two ranks have unlike settings. [`Error::Handshake`] with [`Refusal::DuplicateRank`] on one
    /// of two living processes with the same rank. [`Error::PeerLost`] naming a rank whose process ended, or that served the
    /// store and ended. [`Error::Timeout`] naming the ranks that did not come in time. [`Error::Aborted`] if a rank that
    /// had come could not go on. [`Error::Invalid`] for a rank that is not below the size of the world. Errors of the
    /// store, among them [`Refusal::StoreClosing`] if the rank that serves the store is about to close it, and serves
    /// another one for the next meeting.
    pub fn join(
        store: &'a dyn Store,
        mut member: Member,
        record: Result<String>,
    ) -> Result<(Self, Vec<String>)> {
        Group::new(GroupId::WORLD, member.membership())?;
        member.settings.add(WORLD_SIZE, member.world_size);
        let began = Instant::now();
        // What cannot be told is too far away to be waited for.
        let deadline = began.checked_add(member.timeout).unwrap_or(began + DEFAULT_TIMEOUT * 1_000_000);
        let process = random_bytes().map_err(|error| Error::io("draw a random number", error))?;
        let process = u64::from_ne_bytes(process);
        let own = Arc::new(Own { member, began, deadline, process });
        let mut joined = Self { store, own: Arc::clone(&own), number: 0, watch: None };
        let records = joined.find_meeting(&record).map_err(|error| own.store_error(error))?;
        Ok((joined, records))
    }

    /// Tells of failures of other ranks while this one does not wait for the store, if the store can.
    #[must_use]
    pub fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }

    /// Waits until every rank has opened its connections and calls this. Then nobody needs the store any more.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]. A store that breaks meanwhile is none: connections are open by then, and show who is lost.
    pub fn finish(self) -> Result<()> {
        match self.meeting().pass(Phase::Opened, Some("open")) {
            Ok(Outcome::Complete(_)) => Ok(()),
            Ok(Outcome::Failed(failure)) => Err(self.failed(failure)),
            Err(error) => {
                let rank = self.own.member.rank;
                tracing::debug!(rank, %error, "the store broke after the connections were open");
                Ok(())
            }
        }
    }

    /// Ends the rendezvous on every rank, as this one cannot go on. Returns the first cause, which is this error unless
    /// another rank failed before.
    #[must_use]
    pub fn fail(&self, error: Error) -> Error {
        self.first_cause(&error).unwrap_or(error)
    }

    /// The cause that holds for all ranks, if it is not this error.
    fn first_cause(&self, error: &Error) -> Option<Error> {
        let meeting = self.meeting();
        let is_store = |error: &Error| matches!(error, Error::PeerLost { .. });
        let broken = |error| Some(self.own.store_error(error)).filter(is_store);
        let failure = match error {
            Error::PeerLost { peer, .. } => {
                match meeting.end(self.own.left().min(CAUSE_PATIENCE)) {
                    Ok(Some(Outcome::Failed(first))) => return Some(self.failed(first)),
                    Ok(_) => {}
                    Err(error) => return broken(error),
                }
                Failure::Lost { rank: *peer }
            }
            Error::Timeout { waiting_for, .. } if !waiting_for.is_empty() => {
                Failure::Missing { ranks: waiting_for.clone() }
            }
            Error::Aborted { by, reason } => Failure::Gave { rank: *by, reason: escape(reason) },
            other => Failure::Gave { rank: self.own.member.rank, reason: escape(&other.to_string()) },
        };
        match meeting.fail(Phase::Opened, failure.clone()) {
            Ok(Outcome::Failed(first)) if first != failure => Some(self.failed(first)),
            Ok(_) => {
                self.depart(&failure);
                None
            }
            Err(error) => broken(error),
        }
    }

    /// The error for a failure of the meeting, with which this rank leaves it.
    fn failed(&self, failure: Failure) -> Error {
        self.depart(&failure);
        self.own.error(failure)
    }

    /// Leaves a meeting that has failed. The rank that serves the store waits for the others to hear of it, also for those
    /// that have yet to come. What goes wrong here changes nothing any more.
    fn depart(&self, failure: &Failure) {
        let Member { rank, world_size, store_rank, .. } = self.own.member;
        let meeting = self.meeting();
        let outcome = if store_rank == Some(rank) {
            let hears = |other: &usize| *other != rank && !failure.is_absent(*other);
            let others: Vec<usize> = (0..world_size).filter(hears).collect();
            meeting.await_departures(&others, LATE_PATIENCE.min(self.own.left()))
        } else {
            meeting.depart()
        };
        if let Err(error) = outcome {
            tracing::debug!(rank, %error, "not every rank has heard of the failure");
        }
    }

    fn meeting(&self) -> Meeting<'_> {
        Meeting { store: self.store, own: &self.own, number: self.number }
    }

    /// Takes part in one meeting after the other until one is complete.
    fn find_meeting(&mut self, record: &Result<String>) -> Result<Vec<String>> {
        let mut rivals = Vec::new();
        loop {
            self.number = self.current()?;
            // Before the claim, or nobody would notice a death between the two.
            let presence = self.meeting().register_last_will()?;
            self.watch = presence.map(|presence| Arc::new(Watch::new(Arc::clone(&self.own), presence)));
            let holder = self.meeting().claim()?;
            let passed = if holder == self.own.process {
                self.take_part(record)?
            } else {
                self.supersede(holder, &mut rivals)?;
                Passed::On
            };
            match passed {
                Passed::With(records) => return Ok(records),
                Passed::On => self.advance()?,
            }
        }
    }

    fn number_key(&self) -> String {
        let Member { job, round, .. } = &self.own.member;
        format!("comm/{job:016x}/{round}/meeting")
    }

    /// The number of the current meeting.
    fn current(&self) -> Result<u64> {
        let key = self.number_key();
        let text = self.store.compare_set(&key, b"", b"0")?;
        let parsed = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| malformed(&key, &text))
    }

    /// Makes the next meeting the current one, unless somebody else has.
    fn advance(&self) -> Result<()> {
        if self.own.left().is_zero() {
            return Err(self.own.timeout(Vec::new()));
        }
        let (now, next) = (self.number.to_string(), (self.number + 1).to_string());
        self.store.compare_set(&self.number_key(), now.as_bytes(), next.as_bytes()).map(drop)
    }

    /// Another process has this rank in this meeting. If the meeting is not over, that process is a past one of this
    /// rank, which all who wait for it leave behind; or it lives, and is met again.
    fn supersede(&self, holder: u64, rivals: &mut Vec<u64>) -> Result<()> {
        let rank = self.own.member.rank;
        if self.meeting().end(Duration::ZERO)?.is_some() {
            return Ok(());
        }
        if rivals.contains(&holder) {
            let refusal = Refusal::DuplicateRank { rank };
            return Err(Error::Handshake { with: format!("rank {rank}"), refusal });
        }
        rivals.push(holder);
        tracing::debug!(rank, meeting = self.number, "an earlier process of this rank is left behind");
        self.meeting().fail(Phase::Opened, Failure::Superseded { rank }).map(drop)
    }

    /// Takes part in a meeting in which this process has its rank.
    fn take_part(&self, record: &Result<String>) -> Result<Passed> {
        let meeting = self.meeting();
        match meeting.end(Duration::ZERO)? {
            // It was over before this process came.
            Some(Outcome::Complete(_)) => return Ok(Passed::On),
            Some(Outcome::Failed(failure)) => return self.leave_failed(failure),
            None => {}
        }
        if let Some((first, Difference { name, ours, theirs })) = meeting.compare()? {
            let sides = [(first, theirs), (self.own.member.rank, ours)];
            return match meeting.fail(Phase::Joined, Failure::Setting { name, sides })? {
                Outcome::Failed(failure) => self.leave(failure),
                Outcome::Complete(_) => Ok(Passed::On),
            };
        }
        let record = record.as_ref().map_err(|error| self.fail(error.clone()))?;
        match meeting.pass(Phase::Joined, None)? {
            Outcome::Failed(failure) => self.leave(failure),
            Outcome::Complete(_) => match meeting.pass(Phase::Records, Some(record))? {
                Outcome::Failed(failure) => self.leave(failure),
                outcome @ Outcome::Complete(_) => self.lines(outcome).map(Passed::With),
            },
        }
    }

    /// What a process does that comes to a meeting which has failed. Where the store notices deaths, the failure is that of
    /// this process's job, as all of its earlier processes have been noticed; elsewhere it may be that of an earlier one.
    fn leave_failed(&self, failure: Failure) -> Result<Passed> {
        match failure {
            failure @ Failure::Setting { .. } => self.leave(failure),
            failure if self.watch.is_some() => self.leave(failure),
            _ => Ok(Passed::On),
        }
    }

    /// What a process does whose meeting failed before it was complete.
    fn leave(&self, failure: Failure) -> Result<Passed> {
        match failure {
            Failure::Superseded { .. } => Ok(Passed::On),
            // The others did not wait for this rank. They may come again.
            Failure::Missing { ranks } if ranks.contains(&self.own.member.rank) => Ok(Passed::On),
            failure => Err(self.failed(failure)),
        }
    }

    fn lines(&self, outcome: Outcome) -> Result<Vec<String>> {
        match outcome {
            Outcome::Complete(said) if said.len() == self.own.member.world_size => Ok(said),
            Outcome::Complete(said) => {
                let (told, ranks) = (said.len(), self.own.member.world_size);
                Err(Error::malformed(
                    "the list of ranks in the store",
                    format!("it has {told} ranks of {ranks}"),
                ))
            }
            Outcome::Failed(failure) => Err(self.failed(failure)),
        }
    }
}

impl Drop for Rendezvous<'_> {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.close();
        }
    }
}

//! The course of a rendezvous: the choice of an attempt, its phases and its end.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Error, Group, GroupId, Refusal, Result, Store};

use crate::attempt::{Attempt, Phase, keys_of_attempt, malformed};
use crate::local::{LocalRank, WORLD_SIZE};
use crate::member::{Check, Member};
use crate::outcome::{Failure, Outcome};
use crate::random::random_bytes;
use crate::settings::Difference;
use crate::watch::Watch;

/// The time that a rank which lost a peer waits for the cause to appear in the store before it
/// reports that peer as lost. The peer may have exited because another rank failed, in which case
/// it has written that rank to the store.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which the rank that serves the store keeps it open after a failure, so that ranks
/// that arrive late learn of the failure.
const LATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Ranks that have found each other through a store.
///
/// While this value exists, the exit of this process is reported to all other ranks, provided that
/// the store can detect it: see [`Store::register_last_will`]. With other stores they wait until
/// their deadline.
pub struct Rendezvous<'a> {
    store: &'a dyn Store,
    local: Arc<LocalRank>,
    /// The number of the attempt.
    number: u64,
    /// `None` if the store cannot detect that a process has exited.
    watch: Option<Arc<Watch>>,
    /// [`Member::check`], which is not a part of `local`: a watch outlives the rendezvous, and the
    /// check holds the communicator of the former group.
    check: Option<Check>,
}

impl std::fmt::Debug for Rendezvous<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { local, number, watch, .. } = self;
        let mut shown = f.debug_struct("Rendezvous");
        shown.field("local", local).field("number", number).field("watch", watch).finish_non_exhaustive()
    }
}

/// The outcome of an attempt for this process.
enum Attempted {
    /// All ranks joined. Holds their records.
    Complete(Vec<String>),
    /// The process takes part in the next attempt.
    Retry,
}

impl<'a> Rendezvous<'a> {
    /// Waits until all ranks have arrived with equal settings. Returns the `record` of each, in
    /// rank order. A record is a single line. A rank that passes an error instead of a record gets
    /// that error back, and it is reported to the others.
    ///
    /// # Errors
    /// [`Error::Handshake`] on every rank, without waiting for the deadline, with
    /// [`Refusal::Setting`] or [`Refusal::WorldSize`] if the settings of two ranks differ.
    /// [`Error::Handshake`] with [`Refusal::DuplicateRank`] on one of two living processes with the
    /// same rank. [`Error::PeerLost`] naming a rank whose process exited, including the one that
    /// serves the store. [`Error::Timeout`] naming the ranks that did not arrive in time.
    /// [`Error::Aborted`] if a rank failed after it had arrived. [`Error::Invalid`] for a rank that
    /// is not below the world size. Errors of the store, among them [`Refusal::StoreClosing`] if
    /// the rank that serves the store is about to close it and to serve another one for the next
    /// attempt.
    pub fn join(
        store: &'a dyn Store,
        mut member: Member,
        record: Result<String>,
    ) -> Result<(Self, Vec<String>)> {
        Group::new(GroupId::WORLD, member.membership())?;
        member.settings.add(WORLD_SIZE, member.world_size);
        let began = (member.clock)();
        // A deadline beyond the range of the clock is never reached.
        let deadline = began.checked_add(member.timeout).unwrap_or(began + DEFAULT_TIMEOUT * 1_000_000);
        let process = random_bytes().map_err(|error| Error::io("draw a random number", error))?;
        let process = u64::from_ne_bytes(process);
        let check = member.check.take();
        let local = Arc::new(LocalRank { member, began, deadline, process });
        let mut joined = Self { store, local: Arc::clone(&local), number: 0, watch: None, check };
        let records = joined.find_attempt(&record).map_err(|error| local.store_error(error))?;
        Ok((joined, records))
    }

    /// Returns the watch that reports failures of other ranks while this one opens connections, or
    /// `None` if the store cannot detect them.
    #[must_use]
    pub fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }

    /// Waits until every rank has opened its connections and calls this. Afterwards the store is no
    /// longer needed.
    ///
    /// # Errors
    /// As [`Rendezvous::join`]. A failure of the store is not an error: the connections are already
    /// open, and they report lost ranks.
    pub fn finish(self) -> Result<()> {
        match self.attempt().pass(Phase::Opened, Some("open")) {
            Ok(Outcome::Complete(_)) => Ok(()),
            Ok(Outcome::Failed(failure)) => Err(self.failed(failure)),
            Err(error) => {
                let rank = self.local.member.rank;
                tracing::debug!(rank, %error, "the store broke after the connections were open");
                Ok(())
            }
        }
    }

    /// Fails the rendezvous on every rank. Returns the first cause, which is this error unless
    /// another rank failed earlier.
    #[must_use]
    pub fn fail(&self, error: Error) -> Error {
        self.first_cause(&error).unwrap_or(error)
    }

    /// Returns the cause that holds for all ranks, if it is not this error. That others waited for
    /// this rank is none: they waited because of this error.
    fn first_cause(&self, error: &Error) -> Option<Error> {
        let attempt = self.attempt();
        let waited_for_us = |first: &Failure| matches!(first, Failure::Missing { ranks } if ranks.contains(&self.local.member.rank));
        let is_store = |error: &Error| matches!(error, Error::PeerLost { .. });
        let broken = |error| Some(self.local.store_error(error)).filter(is_store);
        if let Error::PeerLost { .. } = error {
            match attempt.end(self.local.left().min(CAUSE_TIMEOUT)) {
                Ok(Some(Outcome::Failed(first))) if !waited_for_us(&first) => {
                    return Some(self.failed(first));
                }
                Ok(_) => {}
                Err(error) => return broken(error),
            }
        }
        let failure = Failure::of(error, self.local.member.rank);
        match attempt.fail(Phase::Opened, failure.clone()) {
            Ok(Outcome::Failed(first)) if first != failure && !waited_for_us(&first) => {
                Some(self.failed(first))
            }
            Ok(_) => {
                self.depart(&failure);
                None
            }
            Err(error) => broken(error),
        }
    }

    /// Acknowledges a failure, and converts it to an error.
    fn failed(&self, failure: Failure) -> Error {
        self.depart(&failure);
        self.local.error(failure)
    }

    /// Acknowledges a failure. The rank that serves the store waits for the acknowledgements of the
    /// others, including those that have yet to arrive. Errors are only logged, because the
    /// rendezvous has already failed.
    fn depart(&self, failure: &Failure) {
        let Member { rank, world_size, store_rank, .. } = self.local.member;
        let attempt = self.attempt();
        let outcome = if store_rank == Some(rank) {
            let is_alive = |other: usize| !failure.is_absent(other) || attempt.is_late(other, failure);
            let others: Vec<usize> =
                (0..world_size).filter(|&other| other != rank && is_alive(other)).collect();
            // Also after the deadline of this rank: the others reach theirs at about the same time.
            attempt.await_departures(&others, LATE_TIMEOUT)
        } else {
            attempt.depart()
        };
        if let Err(error) = outcome {
            tracing::debug!(rank, %error, "not every rank has acknowledged the failure");
        }
    }

    /// Removes the keys of a rendezvous of this round in which `world_size` ranks have met. Called
    /// by one rank, after all of them have met in a later round.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn remove(store: &dyn Store, job: u64, round: u64, world_size: usize) -> Result<()> {
        let number_key = number_key(job, round);
        let text = store.compare_set(&number_key, b"", b"")?;
        let number = parse_number(&number_key, &text).unwrap_or(0);
        // From the last one on: each attempt before it has keys, unless the number is wrong.
        for attempt in (0..=number).rev() {
            let mut existed = attempt == number;
            for key in keys_of_attempt(job, round, attempt, world_size) {
                existed |= store.delete(&key)?;
            }
            if !existed {
                break;
            }
        }
        store.delete(&number_key).map(drop)
    }

    fn attempt(&self) -> Attempt<'_> {
        Attempt { store: self.store, local: &self.local, number: self.number, check: self.check.as_ref() }
    }

    /// Takes part in attempts until one is complete.
    fn find_attempt(&mut self, record: &Result<String>) -> Result<Vec<String>> {
        let mut rivals = Vec::new();
        loop {
            self.number = self.current()?;
            // This precedes the claim, because a death between the two would otherwise go
            // undetected.
            self.register()?;
            let holder = self.attempt().claim()?;
            let attempted = if holder == self.local.process {
                // A will that was executed before the claim had no effect, and is gone. One that is
                // executed from now on ends the attempt.
                if self.watch.as_ref().is_some_and(|watch| watch.is_broken()) {
                    self.register()?;
                }
                self.join_attempt(record)?
            } else {
                self.supersede(holder, &mut rivals)?;
                Attempted::Retry
            };
            match attempted {
                Attempted::Complete(records) => return Ok(records),
                Attempted::Retry => self.advance()?,
            }
        }
    }

    /// Registers the last will of this process in the current attempt.
    fn register(&mut self) -> Result<()> {
        let presence = self.attempt().register_last_will()?;
        self.watch = presence.map(|presence| Arc::new(Watch::new(Arc::clone(&self.local), presence)));
        Ok(())
    }

    fn number_key(&self) -> String {
        number_key(self.local.member.job, self.local.member.round)
    }

    /// Returns the number of the current attempt.
    fn current(&self) -> Result<u64> {
        let key = self.number_key();
        let text = self.store.compare_set(&key, b"", b"0")?;
        parse_number(&key, &text)
    }

    /// Makes the next attempt the current one, unless another rank has done so.
    fn advance(&self) -> Result<()> {
        if self.local.left().is_zero() {
            self.depart(&Failure::Missing { ranks: Vec::new() });
            return Err(self.local.timeout(Vec::new()));
        }
        let next = self
            .number
            .checked_add(1)
            .ok_or_else(|| malformed(&self.number_key(), self.number.to_string().as_bytes()))?;
        let (now, next) = (self.number.to_string(), next.to_string());
        self.store.compare_set(&self.number_key(), now.as_bytes(), next.as_bytes()).map(drop)
    }

    /// Fails an attempt in which another process holds this rank, unless the attempt is over. If
    /// the holder is an earlier process of this rank, it has exited and will not claim the rank
    /// again. If it is alive, it will, and is a duplicate.
    fn supersede(&self, holder: u64, rivals: &mut Vec<u64>) -> Result<()> {
        let rank = self.local.member.rank;
        if self.attempt().end(Duration::ZERO)?.is_some() {
            return Ok(());
        }
        if rivals.contains(&holder) {
            let refusal = Refusal::DuplicateRank { rank };
            return Err(Error::Handshake { with: format!("rank {rank}"), refusal });
        }
        rivals.push(holder);
        tracing::debug!(rank, attempt = self.number, "another process holds this rank: retrying without it");
        self.attempt().fail(Phase::Opened, Failure::Superseded { rank }).map(drop)
    }

    /// Takes part in an attempt in which this process holds its rank.
    fn join_attempt(&self, record: &Result<String>) -> Result<Attempted> {
        let attempt = self.attempt();
        match attempt.end(Duration::ZERO)? {
            // The attempt was over before this process arrived.
            Some(Outcome::Complete(_)) => return Ok(Attempted::Retry),
            Some(Outcome::Failed(failure)) => {
                // The rank that reported it may have died before it had ended all phases, and the
                // others wait for the end of theirs.
                let _ = attempt.fail(Phase::Opened, failure.clone())?;
                return self.handle_earlier_failure(failure);
            }
            None => {}
        }
        if let Some((first, Difference { name, ours, theirs })) = attempt.compare()? {
            let sides = [(first, theirs), (self.local.member.rank, ours)];
            return match attempt.fail(Phase::Joined, Failure::Setting { name, sides })? {
                Outcome::Failed(failure) => self.handle_failure(failure),
                Outcome::Complete(_) => Ok(Attempted::Retry),
            };
        }
        let record = record.as_ref().map_err(|error| self.fail(error.clone()))?;
        match attempt.pass(Phase::Joined, None)? {
            Outcome::Failed(failure) => self.handle_failure(failure),
            Outcome::Complete(_) => match attempt.pass(Phase::Records, Some(record))? {
                Outcome::Failed(failure) => self.handle_failure(failure),
                outcome @ Outcome::Complete(_) => self.records(outcome).map(Attempted::Complete),
            },
        }
    }

    /// Handles an attempt that had failed before this process arrived. If the store detects deaths,
    /// the failure belongs to this run of the job; with other stores it may belong to an earlier
    /// run.
    fn handle_earlier_failure(&self, failure: Failure) -> Result<Attempted> {
        match failure {
            failure @ Failure::Setting { .. } => self.handle_failure(failure),
            failure if self.watch.is_some() => self.handle_failure(failure),
            _ => Ok(Attempted::Retry),
        }
    }

    /// Handles an attempt that failed while this process took part.
    fn handle_failure(&self, failure: Failure) -> Result<Attempted> {
        match failure {
            Failure::Superseded { .. } => Ok(Attempted::Retry),
            // The others have given up on this rank, but may try again.
            Failure::Missing { ranks } if ranks.contains(&self.local.member.rank) => Ok(Attempted::Retry),
            failure => Err(self.failed(failure)),
        }
    }

    /// Returns the records of a complete phase.
    fn records(&self, outcome: Outcome) -> Result<Vec<String>> {
        match outcome {
            Outcome::Complete(records) if records.len() == self.local.member.world_size => Ok(records),
            Outcome::Complete(records) => {
                let (got, ranks) = (records.len(), self.local.member.world_size);
                Err(Error::malformed(
                    "the list of ranks in the store",
                    format!("it has {got} ranks of {ranks}"),
                ))
            }
            Outcome::Failed(failure) => Err(self.failed(failure)),
        }
    }
}

/// Returns the key of the number of the current attempt.
fn number_key(job: u64, round: u64) -> String {
    format!("comm/{job:016x}/{round}/attempt")
}

fn parse_number(key: &str, text: &[u8]) -> Result<u64> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed(key, text))
}

impl Drop for Rendezvous<'_> {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.close();
        }
    }
}

//! The order of events: which meeting a process takes part in, and what its errors are.

use std::time::Instant;

use comm_core::{During, Error, Group, GroupId, Loss, Membership, Refusal, Result, Store};

use crate::config::RendezvousConfig;
use crate::meeting::{Meeting, Phase};
use crate::outcome::{Failure, Outcome};
use crate::random;
use crate::settings::{Difference, escape};

/// The name of the setting that has a refusal of its own.
const WORLD_SIZE: &str = "world_size";

/// Ranks that have found each other through a store.
pub struct Rendezvous<'a> {
    store: &'a dyn Store,
    config: RendezvousConfig,
    began: Instant,
    deadline: Instant,
    /// Which of the meetings of this job and round this is.
    number: u64,
}

impl std::fmt::Debug for Rendezvous<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, number, .. } = self;
        f.debug_struct("Rendezvous").field("config", config).field("number", number).finish_non_exhaustive()
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
    /// the order of ranks. A record has no end of a line.
    ///
    /// # Errors
    /// [`Error::Handshake`] on every rank, without waiting for the deadline, with [`Refusal::Setting`] or
    /// [`Refusal::WorldSize`] if two ranks have unlike settings. [`Error::Handshake`] with [`Refusal::DuplicateRank`] on one
    /// of two living processes with the same rank. [`Error::Timeout`] naming the ranks that did not come in time.
    /// [`Error::Aborted`] if a rank that had come could not go on. [`Error::Invalid`] for a rank that is not below the size
    /// of the world. Errors of the store.
    pub fn join(
        store: &'a dyn Store,
        mut config: RendezvousConfig,
        record: &str,
    ) -> Result<(Self, Vec<String>)> {
        Group::new(GroupId::WORLD, Membership { rank: config.rank, size: config.world_size })?;
        config.settings.add(WORLD_SIZE, config.world_size);
        let began = Instant::now();
        // What cannot be told is too far away to be waited for.
        let deadline = began.checked_add(config.timeout).unwrap_or(began + comm_core::DEFAULT_TIMEOUT * 100);
        let process = random::number()?;
        let mut joined = Self { store, config, began, deadline, number: 0 };
        let mut rivals = Vec::new();
        loop {
            joined.number = joined.current()?;
            let holder = joined.meeting().claim(process)?;
            let passed = if holder == process {
                joined.take_part(record)?
            } else {
                joined.supersede(holder, &mut rivals)?;
                Passed::On
            };
            match passed {
                Passed::With(records) => return Ok((joined, records)),
                Passed::On => joined.advance()?,
            }
        }
    }

    /// Exchanges one line with every other rank, once after [`Rendezvous::join`]. Every rank calls this, or none does.
    /// Returns the lines in the order of ranks.
    ///
    /// # Errors
    /// As [`Rendezvous::join`].
    pub fn all_gather(&self, line: &str) -> Result<Vec<String>> {
        let outcome = self.meeting().pass(Phase::Addresses, Some(line))?;
        self.lines(outcome)
    }

    fn meeting(&self) -> Meeting<'_> {
        Meeting { store: self.store, config: &self.config, number: self.number, deadline: self.deadline }
    }

    fn number_key(&self) -> String {
        let RendezvousConfig { job, round, .. } = &self.config;
        format!("comm/{job:016x}/{round}/meeting")
    }

    /// The number of the current meeting.
    fn current(&self) -> Result<u64> {
        let key = self.number_key();
        let text = self.store.compare_set(&key, b"", b"0")?;
        let parsed = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| crate::meeting::malformed(&key, &text))
    }

    /// Makes the next meeting the current one, unless somebody else has.
    fn advance(&self) -> Result<()> {
        if Instant::now() >= self.deadline {
            return Err(self.timeout(Vec::new()));
        }
        let (now, next) = (self.number.to_string(), (self.number + 1).to_string());
        self.store.compare_set(&self.number_key(), now.as_bytes(), next.as_bytes()).map(drop)
    }

    /// Another process has this rank in this meeting. If the meeting is not over, that process is a past one of this
    /// rank, which all who wait for it leave behind; or it lives, and is met again.
    fn supersede(&self, holder: u64, rivals: &mut Vec<u64>) -> Result<()> {
        let rank = self.config.rank;
        if self.meeting().end()?.is_some() {
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
    fn take_part(&self, record: &str) -> Result<Passed> {
        let meeting = self.meeting();
        match meeting.end()? {
            // It was over before this process came.
            Some(Outcome::Complete(_)) => return Ok(Passed::On),
            Some(Outcome::Failed(failure)) => return self.leave(failure),
            None => {}
        }
        if let Some((first, Difference { name, ours, theirs })) = meeting.compare()? {
            let sides = [(first, theirs), (self.config.rank, ours)];
            return match meeting.fail(Phase::Joined, Failure::Setting { name, sides })? {
                Outcome::Failed(failure) => self.leave(failure),
                Outcome::Complete(_) => Ok(Passed::On),
            };
        }
        match meeting.pass(Phase::Joined, None)? {
            Outcome::Failed(failure) => self.leave(failure),
            Outcome::Complete(_) => match meeting.pass(Phase::Records, Some(record))? {
                Outcome::Failed(failure) => self.leave(failure),
                outcome @ Outcome::Complete(_) => self.lines(outcome).map(Passed::With),
            },
        }
    }

    /// What a process does whose meeting failed before it was complete.
    fn leave(&self, failure: Failure) -> Result<Passed> {
        match failure {
            Failure::Superseded { .. } => Ok(Passed::On),
            // The others did not wait for this rank. They may come again.
            Failure::Missing { ranks } if ranks.contains(&self.config.rank) => Ok(Passed::On),
            failure => Err(self.error(failure)),
        }
    }

    fn lines(&self, outcome: Outcome) -> Result<Vec<String>> {
        match outcome {
            Outcome::Complete(said) if said.len() == self.config.world_size => Ok(said),
            Outcome::Complete(said) => {
                let (told, ranks) = (said.len(), self.config.world_size);
                Err(Error::malformed(
                    "the list of ranks in the store",
                    format!("it has {told} ranks of {ranks}"),
                ))
            }
            Outcome::Failed(failure) => Err(self.error(failure)),
        }
    }

    fn error(&self, failure: Failure) -> Error {
        let during = During::Rendezvous;
        match failure {
            Failure::Superseded { rank } | Failure::Lost { rank } => {
                Error::PeerLost { peer: rank, during, loss: Loss::Closed }
            }
            Failure::Missing { ranks } => self.timeout(ranks),
            Failure::Setting { name, sides } => self.unlike(name, sides),
            Failure::Gave { rank, reason } => Error::Aborted { by: rank, reason },
        }
    }

    fn timeout(&self, waiting_for: Vec<usize>) -> Error {
        Error::Timeout { waiting_for, after: self.began.elapsed(), during: During::Rendezvous }
    }

    /// This rank's value of a setting against that of the other side, where it is one of the two.
    fn unlike(&self, name: String, sides: [(usize, String); 2]) -> Error {
        let [first, second] = sides;
        let own = self.config.settings.value_of(&name).to_owned();
        let (rank, theirs) = if first.1 == own { second } else { first };
        let with = format!("rank {rank}");
        let refusal = match (name.as_str(), own.parse(), theirs.parse()) {
            (WORLD_SIZE, Ok(ours), Ok(theirs)) => Refusal::WorldSize { ours, theirs },
            _ => Refusal::Setting { name: escape(&name), ours: own, theirs, rank },
        };
        Error::Handshake { with, refusal }
    }
}

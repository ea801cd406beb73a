//! One rendezvous attempt: its keys in the store, and the operations on them.

use std::ops::Range;
use std::time::Duration;

use comm_core::{Error, LastWill, Presence, Result, Store};

use crate::local::LocalRank;
use crate::member::{Check, Member};
use crate::outcome::{Failure, Outcome};
use crate::settings::{Difference, Settings};

/// The interval between two calls of [`Member::check`].
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The largest number of keys in one request to the store.
const KEYS_PER_CHECK: usize = 64;

/// The key of the settings that all ranks must share.
const SETTINGS: &str = "settings";

/// A phase of an attempt. Its outcome is the same for all ranks: either every rank took part, or
/// the attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Every rank has claimed its number.
    Joined,
    /// Every rank has published its record. Ranks publish only after all have joined, so a process
    /// that claimed its rank and then died does not count as present.
    Records,
    /// Every rank has opened its connections.
    Opened,
}

impl Phase {
    /// The phases in reverse order. A rank that fails writes the outcome of the last phase first,
    /// because its key tells the others that the attempt is over.
    const ALL: [Self; 3] = [Self::Opened, Self::Records, Self::Joined];

    const fn name(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Records => "records",
            Self::Opened => "opened",
        }
    }

    /// The key of the number of ranks that have taken part.
    fn count(self) -> String {
        format!("{}/count", self.name())
    }

    /// The key of a rank that has taken part.
    fn rank(self, rank: usize) -> String {
        format!("{}/{rank}", self.name())
    }
}

/// The key of a rank that has acknowledged a failure.
fn departed(rank: usize) -> String {
    format!("departed/{rank}")
}

fn key(job: u64, round: u64, number: u64, name: &str) -> String {
    format!("comm/{job:016x}/{round}/{number}/{name}")
}

/// The end of a wait for the end of a phase.
enum Ended {
    Outcome(Outcome),
    /// The check of this rank has failed.
    CheckFailed(Failure),
    /// All ranks have taken part, and the last one has not ended the phase.
    AllTookPart,
}

/// One rendezvous attempt, as seen by one rank.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) local: &'a LocalRank,
    /// The number of the attempt within its job and round.
    pub(crate) number: u64,
    pub(crate) check: Option<&'a Check>,
}

impl Attempt<'_> {
    fn key(&self, name: &str) -> String {
        let Member { job, round, .. } = self.local.member;
        key(job, round, self.number, name)
    }

    fn phase_key(&self, phase: Phase) -> String {
        self.key(phase.name())
    }

    fn rank_key(&self, phase: Phase, rank: usize) -> String {
        self.key(&phase.rank(rank))
    }

    /// Asks the store to fail the attempt if this process exits while it holds its rank. Returns
    /// `None` if the store cannot detect an exit.
    pub(crate) fn register_last_will(&self) -> Result<Option<Box<dyn Presence>>> {
        let rank = self.local.member.rank;
        let keys = Phase::ALL.map(|phase| self.phase_key(phase));
        let (claim, lost) =
            (self.claim_text(), Outcome::Failed(Failure::Lost { rank, report: None }).encode());
        let will = LastWill {
            condition: (&self.rank_key(Phase::Joined, rank), claim.as_bytes()),
            keys: &keys.each_ref().map(String::as_str),
            value: lost.as_bytes(),
        };
        self.store.register_last_will(&will, &self.phase_key(Phase::Opened), self.local.left())
    }

    fn claim_text(&self) -> String {
        format!("{:016x}", self.local.process)
    }

    /// Claims this process's rank. Returns the process that holds the rank now.
    pub(crate) fn claim(&self) -> Result<u64> {
        let key = self.rank_key(Phase::Joined, self.local.member.rank);
        let holder = self.store.compare_set(&key, b"", self.claim_text().as_bytes())?;
        let parsed = std::str::from_utf8(&holder).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        parsed.ok_or_else(|| malformed(&key, &holder))
    }

    /// Returns the outcome of the attempt, or `None` if it does not end within this time.
    pub(crate) fn end(&self, within: Duration) -> Result<Option<Outcome>> {
        let key = self.phase_key(Phase::Opened);
        match self.store.get(&key, within) {
            Ok(text) => parse(&key, &text).map(Some),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Compares this rank's settings with the settings of the first rank that published some.
    /// Returns that rank and the first difference, if there is one.
    pub(crate) fn compare(&self) -> Result<Option<(usize, Difference)>> {
        let key = self.key(SETTINGS);
        let Member { rank, settings, .. } = &self.local.member;
        let own = format!("{rank}\n{}", settings.encode());
        let first = self.store.compare_set(&key, b"", own.as_bytes())?;
        let parsed = std::str::from_utf8(&first).ok().and_then(|text| {
            let (rank, settings) = text.split_once('\n')?;
            Some((rank.parse::<usize>().ok()?, settings.parse::<Settings>().ok()?))
        });
        let (rank, theirs) = parsed.ok_or_else(|| malformed(&key, &first))?;
        Ok(settings.difference(&theirs).map(|difference| (rank, difference)))
    }

    /// Takes part in a phase, and waits for it to end.
    pub(crate) fn pass(&self, phase: Phase, record: Option<&str>) -> Result<Outcome> {
        if let Some(record) = record {
            self.store.set(&self.rank_key(phase, self.local.member.rank), record.as_bytes())?;
        }
        let count = self.store.add(&self.key(&phase.count()), 1)?;
        if usize::try_from(count).ok() == Some(self.local.member.world_size) {
            return self.complete(phase);
        }
        match self.await_end(phase) {
            Ok(Ended::Outcome(outcome)) => Ok(outcome),
            Ok(Ended::CheckFailed(failure)) => self.fail(phase, failure),
            Ok(Ended::AllTookPart) => self.complete(phase),
            Err(Error::Timeout { .. }) => match self.missing(phase)? {
                missing if missing.is_empty() => self.complete(phase),
                ranks => self.fail(phase, Failure::Missing { ranks }),
            },
            Err(error) => Err(error),
        }
    }

    /// Returns whether all ranks have taken part in a phase.
    fn have_all_taken_part(&self, phase: Phase) -> Result<bool> {
        for ranks in self.ranks_per_check() {
            if !self.have_taken_part(phase, ranks)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the ranks in pieces for one request to the store each.
    fn ranks_per_check(&self) -> impl Iterator<Item = Range<usize>> {
        let size = self.local.member.world_size;
        (0..size).step_by(KEYS_PER_CHECK).map(move |first| first..size.min(first + KEYS_PER_CHECK))
    }

    fn have_taken_part(&self, phase: Phase, ranks: Range<usize>) -> Result<bool> {
        let keys: Vec<String> = ranks.map(|rank| self.rank_key(phase, rank)).collect();
        self.store.check(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Waits until a phase has ended.
    ///
    /// The last rank to take part ends it. In case that rank has stopped or died, each rank looks
    /// for all ranks after half of its time, half of the rest, and so on: at its deadline, it could
    /// not distinguish that rank from those that wait as it does.
    fn await_end(&self, phase: Phase) -> Result<Ended> {
        let key = self.phase_key(phase);
        let mut next_look = self.local.left() / 2;
        loop {
            if let Some(Err(error)) = self.check.map(|check| check()) {
                return Ok(Ended::CheckFailed(Failure::of(&error, self.local.member.rank)));
            }
            let left = self.local.left();
            let until_look = left.saturating_sub(next_look).max(CHECK_INTERVAL);
            let interval = if self.check.is_some() { CHECK_INTERVAL } else { until_look };
            match self.store.get(&key, left.min(interval)) {
                Err(Error::Timeout { .. }) if left > CHECK_INTERVAL => {}
                other => return parse(&key, &other?).map(Ended::Outcome),
            }
            if self.local.left() <= next_look {
                next_look /= 2;
                if self.have_all_taken_part(phase)? {
                    return Ok(Ended::AllTookPart);
                }
            }
        }
    }

    /// Collects the records of all ranks, and ends the phase.
    fn complete(&self, phase: Phase) -> Result<Outcome> {
        let mut records = Vec::new();
        if phase == Phase::Records {
            for rank in 0..self.local.member.world_size {
                let key = self.rank_key(phase, rank);
                let text = self.store.get(&key, self.local.left())?;
                records.push(String::from_utf8(text).map_err(|e| malformed(&key, e.as_bytes()))?);
            }
        }
        self.decide(phase, &Outcome::Complete(records))
    }

    /// Returns the ranks that have not taken part in a phase.
    fn missing(&self, phase: Phase) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for ranks in self.ranks_per_check() {
            if self.have_taken_part(phase, ranks.clone())? {
                continue;
            }
            for rank in ranks {
                if !self.have_taken_part(phase, rank..rank + 1)? {
                    missing.push(rank);
                }
            }
        }
        Ok(missing)
    }

    /// Fails the attempt, unless it has already ended. Returns the outcome of `phase`.
    pub(crate) fn fail(&self, phase: Phase, failure: Failure) -> Result<Outcome> {
        let mut outcome = Outcome::Failed(failure);
        let mut decided = None;
        for at in Phase::ALL {
            let first = self.decide(at, &outcome)?;
            if at == Phase::Opened {
                outcome = first.clone();
            }
            if at == phase {
                decided = Some(first);
            }
        }
        Ok(decided.unwrap_or(outcome))
    }

    /// Acknowledges the failure in the store.
    pub(crate) fn depart(&self) -> Result<()> {
        self.store.set(&self.departed_key(self.local.member.rank), b"")
    }

    /// Returns whether a rank that is missing has claimed its number, so that it was only late for
    /// a phase, and learns of the failure.
    pub(crate) fn is_late(&self, rank: usize, failure: &Failure) -> bool {
        let is_missing = matches!(failure, Failure::Missing { ranks } if ranks.contains(&rank));
        is_missing && self.have_taken_part(Phase::Joined, rank..rank + 1).unwrap_or(false)
    }

    /// Waits until these ranks have acknowledged the failure.
    pub(crate) fn await_departures(&self, ranks: &[usize], within: Duration) -> Result<()> {
        let keys: Vec<String> = ranks.iter().map(|rank| self.departed_key(*rank)).collect();
        self.store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), within)
    }

    fn departed_key(&self, rank: usize) -> String {
        self.key(&departed(rank))
    }

    /// Ends a phase, unless it has already ended. Returns its outcome.
    fn decide(&self, phase: Phase, outcome: &Outcome) -> Result<Outcome> {
        let key = self.phase_key(phase);
        let first = self.store.compare_set(&key, b"", outcome.encode().as_bytes())?;
        parse(&key, &first)
    }
}

/// Asks the store to fail the first attempt of a round, as if its rank 0 had exited, if this
/// process exits while the condition holds. Returns `None` if the store cannot detect an exit.
pub(crate) fn register_loss_of_leader(
    store: &dyn Store,
    (job, round): (u64, u64),
    condition: (&str, &[u8]),
    timeout: Duration,
) -> Result<Option<Box<dyn Presence>>> {
    let keys = Phase::ALL.map(|phase| key(job, round, 0, phase.name()));
    let lost = Outcome::Failed(Failure::Lost { rank: 0, report: None }).encode();
    let will = LastWill { condition, keys: &keys.each_ref().map(String::as_str), value: lost.as_bytes() };
    store.register_last_will(&will, &keys[0], timeout)
}

/// Returns the keys that an attempt may have in the store.
pub(crate) fn keys_of_attempt(job: u64, round: u64, number: u64, world_size: usize) -> Vec<String> {
    let mut names = vec![SETTINGS.to_owned()];
    for phase in Phase::ALL {
        names.extend([phase.name().to_owned(), phase.count()]);
        names.extend((0..world_size).map(|rank| phase.rank(rank)));
    }
    names.extend((0..world_size).map(departed));
    names.iter().map(|name| key(job, round, number, name)).collect()
}

pub(crate) fn parse(key: &str, text: &[u8]) -> Result<Outcome> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed(key, text))
}

pub(crate) fn malformed(key: &str, text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    Error::malformed(format!("key {key:?} of the store"), format_args!("{text:?}"))
}

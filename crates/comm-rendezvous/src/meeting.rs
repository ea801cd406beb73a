//! One meeting: the keys of the store that it uses, and what is done with them.

use std::time::{Duration, Instant};

use comm_core::{Error, Result, Store};

use crate::config::RendezvousConfig;
use crate::outcome::{Failure, Outcome};
use crate::settings::{Difference, Settings};

/// A part of a meeting, which ends for all ranks alike: every rank took part in it, or the meeting failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Every rank has claimed its number.
    Joined,
    /// Every rank has told its record. As only a living process does so once all have joined, nobody is taken for present
    /// who claimed a rank and died.
    Records,
    /// Every rank has told further addresses, if these are needed.
    Addresses,
    /// Every rank has opened its connections.
    Opened,
}

impl Phase {
    /// In the reverse of their order: who fails writes the last one first, by which others know that the meeting is over.
    const ALL: [Self; 4] = [Self::Opened, Self::Addresses, Self::Records, Self::Joined];

    const fn name(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Records => "records",
            Self::Addresses => "addresses",
            Self::Opened => "opened",
        }
    }
}

/// One meeting, in which a process is one rank.
#[derive(Clone, Copy)]
pub(crate) struct Meeting<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) config: &'a RendezvousConfig,
    /// Which of the meetings of this job and round it is.
    pub(crate) number: u64,
    pub(crate) deadline: Instant,
}

impl Meeting<'_> {
    fn key(&self, name: &str) -> String {
        let RendezvousConfig { job, round, .. } = self.config;
        format!("comm/{job:016x}/{round}/{}/{name}", self.number)
    }

    fn phase_key(&self, phase: Phase) -> String {
        self.key(phase.name())
    }

    fn rank_key(&self, phase: Phase, rank: usize) -> String {
        self.key(&format!("{}/{rank}", phase.name()))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Claims this process's rank. Returns the process that has it then.
    pub(crate) fn claim(&self, process: u64) -> Result<u64> {
        let key = self.rank_key(Phase::Joined, self.config.rank);
        let holder = self.store.compare_set(&key, b"", format!("{process:016x}").as_bytes())?;
        let parsed = std::str::from_utf8(&holder).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        parsed.ok_or_else(|| malformed(&key, &holder))
    }

    /// How the whole meeting ended, if it has.
    pub(crate) fn end(&self) -> Result<Option<Outcome>> {
        let key = self.phase_key(Phase::Opened);
        match self.store.get(&key, Duration::ZERO) {
            Ok(text) => parse(&key, &text).map(Some),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Compares settings with those of the rank that came first, which are this rank's if it did.
    pub(crate) fn compare(&self) -> Result<Option<(usize, Difference)>> {
        let key = self.key("settings");
        let RendezvousConfig { rank, settings, .. } = self.config;
        let own = format!("{rank}\n{}", settings.encode());
        let first = self.store.compare_set(&key, b"", own.as_bytes())?;
        let parsed = std::str::from_utf8(&first).ok().and_then(|text| {
            let (rank, settings) = text.split_once('\n')?;
            Some((rank.parse::<usize>().ok()?, settings.parse::<Settings>().ok()?))
        });
        let (rank, theirs) = parsed.ok_or_else(|| malformed(&key, &first))?;
        Ok(settings.difference(&theirs).map(|difference| (rank, difference)))
    }

    /// Takes part in a phase, and waits until it has ended.
    pub(crate) fn pass(&self, phase: Phase, said: Option<&str>) -> Result<Outcome> {
        if let Some(said) = said {
            self.store.set(&self.rank_key(phase, self.config.rank), said.as_bytes())?;
        }
        let count = self.store.add(&self.key(&format!("{}/count", phase.name())), 1)?;
        if usize::try_from(count).ok() == Some(self.config.world_size) {
            return self.complete(phase);
        }
        let key = self.phase_key(phase);
        match self.store.get(&key, self.left()) {
            Ok(text) => parse(&key, &text),
            Err(Error::Timeout { .. }) => match self.missing(phase)? {
                // All took part, but whoever came last has not said so.
                missing if missing.is_empty() => self.complete(phase),
                ranks => self.fail(phase, Failure::Missing { ranks }),
            },
            Err(error) => Err(error),
        }
    }

    /// Collects what all ranks said, and ends the phase.
    fn complete(&self, phase: Phase) -> Result<Outcome> {
        let mut said = Vec::new();
        if matches!(phase, Phase::Records | Phase::Addresses) {
            for rank in 0..self.config.world_size {
                let key = self.rank_key(phase, rank);
                let text = self.store.get(&key, self.left())?;
                said.push(String::from_utf8(text).map_err(|e| malformed(&key, e.as_bytes()))?);
            }
        }
        self.decide(phase, &Outcome::Complete(said))
    }

    /// Which ranks have not taken part in a phase.
    fn missing(&self, phase: Phase) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for rank in 0..self.config.world_size {
            match self.store.wait(&[&self.rank_key(phase, rank)], Duration::ZERO) {
                Ok(()) => {}
                Err(Error::Timeout { .. }) => missing.push(rank),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Ends the meeting with a failure, unless it has ended. Returns how `phase` ended.
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

    /// Ends a phase, unless it has ended. Returns how it ended.
    fn decide(&self, phase: Phase, outcome: &Outcome) -> Result<Outcome> {
        let key = self.phase_key(phase);
        let first = self.store.compare_set(&key, b"", outcome.encode().as_bytes())?;
        parse(&key, &first)
    }
}

fn parse(key: &str, text: &[u8]) -> Result<Outcome> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed(key, text))
}

pub(crate) fn malformed(key: &str, text: &[u8]) -> Error {
    let text = String::from_utf8_lossy(text);
    Error::malformed(format!("key {key:?} of the store"), format_args!("{text:?}"))
}

//! The order of measurements, and those that the journal lacks.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use comm_cli::__private::progress::Progress;

use super::args::Compare;
use super::bounds;
use super::collective::Collective;
use super::journal::Journal;
use super::library::{Libraries, Library, MeasurementArgs, is_fair, is_ours};
use super::line::{self, LineError};
use super::record::{Case, Failure, Record, RoundLimit, Time};
use super::{limits, process};
use crate::error::{Error, Result};
use core_distance::{CoreDistance, PATIENCE};

/// The attempts to measure a case while the machine does not change.
const ATTEMPTS: usize = 4;

/// The name of a measurement, and the reason if it failed.
type Outcome = (String, Option<String>);

/// All measurements of a comparison.
#[derive(Debug)]
pub(crate) struct Rounds<'a> {
    compare: &'a Compare,
    libraries: Vec<&'a dyn Library>,
    /// The program that measures limits.
    limits: PathBuf,
    /// The time to wait until the cores are as far apart as before.
    patience: Duration,
}

/// A case in one round, which all libraries measure consecutively.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RoundCase {
    round: u32,
    case: Case,
    sizes: Vec<usize>,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(compare: &'a Compare, found: &'a Libraries, limits: PathBuf) -> Self {
        let libraries = found.installed.iter().map(|(library, _)| &**library).collect();
        Self { compare, libraries, limits, patience: PATIENCE }
    }

    /// Makes the measurements that the journal lacks, and calls `after_round` after every round.
    pub(crate) fn measure<W: Write>(
        &self,
        run: u64,
        journal: &mut Journal,
        out: &mut W,
        mut after_round: impl FnMut(&Journal, &mut W) -> Result<()>,
    ) -> Result<()> {
        let is_left = |item: &RoundCase| !item.is_done(&self.names(item.case), run, &journal.records);
        let left: Vec<RoundCase> = self.round_cases().into_iter().filter(is_left).collect();
        let starts = left.iter().map(|item| self.names(item.case).len()).sum();
        let progress = Progress::with_estimate(starts);
        for (at, item) in left.iter().enumerate() {
            let outcomes = self.measure_steadily(item, |before| {
                self.measure_case(item, before, run, journal, |what| progress.at(what))
            })?;
            for (what, failure) in outcomes {
                progress.done(|| match failure {
                    Some(failure) => writeln!(out, "{what}: {failure}"),
                    None if stderr().is_terminal() => Ok(()),
                    None => writeln!(out, "{what}"),
                })?;
            }
            if left.get(at + 1).is_none_or(|next| next.round != item.round) {
                progress.suspended(|| after_round(journal, out))?;
            }
        }
        Ok(())
    }

    /// Measures a case, and again if the machine has changed meanwhile. After some attempts, the
    /// times are taken as they are.
    fn measure_steadily(
        &self,
        item: &RoundCase,
        mut measure: impl FnMut(&CoreDistance<'_>) -> Result<Option<Vec<Outcome>>>,
    ) -> Result<Vec<Outcome>> {
        for _ in 1..ATTEMPTS {
            if let Some(outcomes) = measure(&CoreDistance::now(&self.limits)?)? {
                return Ok(outcomes);
            }
        }
        let mut outcomes = measure(&CoreDistance::unknown(&self.limits))?.unwrap_or_default();
        let what = format!("round {}, {}", item.round, item.what());
        outcomes.push((what, Some("the machine has changed in each attempt".to_owned())));
        Ok(outcomes)
    }

    /// Measures the limits of a case, and lets each library measure it. Returns the outcomes, or
    /// `None` if the machine has changed meanwhile.
    fn measure_case(
        &self,
        item: &RoundCase,
        before: &CoreDistance<'_>,
        run: u64,
        journal: &mut Journal,
        begins: impl Fn(String),
    ) -> Result<Option<Vec<Outcome>>> {
        self.measure_limits(item, run, journal)?;
        let mut outcomes = Vec::new();
        for library in self.order(item.round).filter(|library| library.measures(item.case)) {
            let what = format!("round {}, {} by {}", item.round, item.what(), library.name());
            begins(what.clone());
            let mut failure = self.start(item, library, run, journal)?;
            // A short change concerns only one library.
            if failure.is_none() && !before.is_unchanged()? {
                if !before.returns(self.patience)? {
                    return Ok(None);
                }
                failure = self.start(item, library, run, journal)?;
                if !before.is_unchanged()? {
                    return Ok(None);
                }
            }
            outcomes.push((what, failure));
        }
        Ok(Some(outcomes))
    }

    /// Returns the names of the libraries that measure a case.
    fn names(&self, case: Case) -> Vec<String> {
        let libraries = self.libraries.iter().filter(|library| library.measures(case));
        libraries.map(|library| library.name()).collect()
    }

    /// Returns every case in every round.
    fn round_cases(&self) -> Vec<RoundCase> {
        let compare = self.compare;
        let cases = || {
            let ranks = compare.ranks.iter().map(|ranks| usize::from(*ranks));
            ranks.flat_map(|ranks| compare.collectives.iter().map(move |collective| (*collective, ranks)))
        };
        let round_case = |round, (collective, ranks): (Collective, usize)| {
            let sizes = compare.sizes(collective, ranks);
            RoundCase { round, case: Case { collective, ranks, rotates: compare.rotate }, sizes }
        };
        let all = (1..=compare.rounds).flat_map(|round| cases().map(move |case| round_case(round, case)));
        let is_measured = |case: Case| case.collective.is_measured(case.ranks, case.rotates);
        all.filter(|item| !item.sizes.is_empty() && is_measured(item.case)).collect()
    }

    /// Returns all libraries, rotated by the round.
    fn order(&self, round: u32) -> impl Iterator<Item = &'a dyn Library> {
        let first = (round as usize).saturating_sub(1) % self.libraries.len().max(1);
        let (after, before) = self.libraries.split_at(first);
        before.iter().chain(after).copied()
    }

    /// Measures the limits that bound the times of a case. They are those of this round, because
    /// the machine may be slower in another one.
    fn measure_limits(&self, item: &RoundCase, run: u64, journal: &mut Journal) -> Result<()> {
        let RoundCase { round, case, ref sizes } = *item;
        let ours = || self.libraries.iter().map(|library| library.name()).filter(|name| is_ours(name));
        let bounds_ours = |limit: &str| ours().any(|name| is_fair(&name, limit));
        let arguments = bounds::arguments(case, sizes, bounds_ours);
        if arguments.is_empty() {
            return Ok(());
        }
        let limits = limits::read(Command::new(&self.limits).args(arguments), run)?;
        limits
            .into_iter()
            .try_for_each(|limit| journal.add(Record::RoundLimit(RoundLimit { round, case, limit })))
    }

    /// Runs the program of a library, and records its times. Returns the reason if it failed.
    fn start(
        &self,
        item: &RoundCase,
        library: &dyn Library,
        run: u64,
        journal: &mut Journal,
    ) -> Result<Option<String>> {
        let RoundCase { round, case, ref sizes } = *item;
        let args = MeasurementArgs { case, sizes, check: round == 1, compare: self.compare };
        let mut wrong = None;
        let mut measured = Vec::new();
        let ended = process::run(&mut library.command(&args), |text| {
            match line::parse(text) {
                Ok(row) => {
                    measured.push(row.bytes);
                    let (library, bytes, us) = (library.name(), row.bytes, row.us);
                    journal.add(Record::Time(Time { run, round, library, case, bytes, us }))?;
                }
                Err(LineError::Wrong(elements)) => wrong = Some(format!("{elements} elements were wrong")),
                Err(LineError::Other) => {}
            }
            Ok::<_, Error>(())
        })?;
        let absent = sizes.iter().find(|size| !measured.contains(size));
        let absent = absent.map(|size| format!("no measurement of {size} bytes"));
        let reason = wrong.or(ended.err().map(|ended| ended.to_string())).or(absent);
        if let Some(reason) = reason.clone() {
            let library = library.name();
            journal.add(Record::Failure(Failure { run, round, library, case, reason }))?;
        }
        Ok(reason)
    }
}

impl RoundCase {
    fn what(&self) -> String {
        self.case.to_string()
    }

    /// Returns whether all libraries have measured every size or failed. Otherwise, all measure
    /// again, because compared times must not be hours apart.
    fn is_done(&self, libraries: &[String], run: u64, records: &[Record]) -> bool {
        let is_own = |record: &&Record| match record {
            Record::Time(time) => (time.run, time.round, time.case) == (run, self.round, self.case),
            Record::Failure(failure) => {
                (failure.run, failure.round, failure.case) == (run, self.round, self.case)
            }
            _ => false,
        };
        let own: Vec<&Record> = records.iter().filter(is_own).collect();
        let is_done = |name: &String, size: &usize| {
            own.iter().any(|record| match record {
                Record::Time(time) => time.library == *name && time.bytes == *size,
                Record::Failure(failure) => failure.library == *name,
                _ => false,
            })
        };
        libraries.iter().all(|name| self.sizes.iter().all(|size| is_done(name, size)))
    }
}

mod core_distance;
#[cfg(test)]
mod tests;

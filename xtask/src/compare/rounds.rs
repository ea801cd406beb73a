//! In which order is measured, and what is left to do.

use std::io::{IsTerminal, Write, stderr};

use comm_cli::__private::progress::Progress;

use super::args::Compare;
use super::collective::Collective;
use super::error::{CompareError, Result};
use super::journal::Journal;
use super::line::{self, Odd};
use super::process;
use super::record::{Case, Failure, Record, Time};
use super::subject::{Found, Start, Subject};

/// All that is measured.
#[derive(Debug)]
pub(crate) struct Rounds<'a> {
    compare: &'a Compare,
    subjects: Vec<&'a dyn Subject>,
}

/// A case in one round: what everybody measures one after the other, so that it can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heat {
    round: u32,
    case: Case,
    sizes: Vec<usize>,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(compare: &'a Compare, found: &'a Found) -> Self {
        Self { compare, subjects: found.here.iter().map(|(subject, _)| &**subject).collect() }
    }

    /// Measures what is not in the journal yet. Something may be done with it after every round.
    pub(crate) fn measure<W: Write>(
        &self,
        run: u64,
        journal: &mut Journal,
        out: &mut W,
        mut after_round: impl FnMut(&Journal, &mut W) -> Result<()>,
    ) -> Result<()> {
        let is_left = |heat: &Heat| !heat.is_done(&self.names(heat.case.collective), run, &journal.records);
        let left: Vec<Heat> = self.heats().into_iter().filter(is_left).collect();
        let starts = left.iter().map(|heat| self.names(heat.case.collective).len()).sum();
        let progress = Progress::with_estimate(starts);
        for (at, heat) in left.iter().enumerate() {
            let has_it = |subject: &&dyn Subject| subject.measures(heat.case.collective);
            for subject in self.order(heat.round).filter(has_it) {
                let what = format!("round {}, {} by {}", heat.round, heat.what(), subject.name());
                progress.at(what.clone());
                let said = self.start(heat, subject, run, journal)?;
                progress.done(|| match said {
                    Some(failure) => writeln!(out, "{what}: {failure}"),
                    None if stderr().is_terminal() => Ok(()),
                    None => writeln!(out, "{what}"),
                })?;
            }
            if left.get(at + 1).is_none_or(|next| next.round != heat.round) {
                progress.suspended(|| after_round(journal, out))?;
            }
        }
        Ok(())
    }

    /// Those who have a collective.
    fn names(&self, collective: Collective) -> Vec<String> {
        let subjects = self.subjects.iter().filter(|subject| subject.measures(collective));
        subjects.map(|subject| subject.name()).collect()
    }

    /// Every case in every round.
    fn heats(&self) -> Vec<Heat> {
        let compare = self.compare;
        let cases = || {
            let ranks = compare.ranks.iter().map(|ranks| usize::from(*ranks));
            ranks.flat_map(|ranks| compare.collectives.iter().map(move |collective| (*collective, ranks)))
        };
        let heat = |round, (collective, ranks): (Collective, usize)| {
            let sizes = compare.sizes(collective, ranks);
            Heat { round, case: Case { collective, ranks }, sizes }
        };
        let heats = (1..=compare.rounds).flat_map(|round| cases().map(move |case| heat(round, case)));
        heats.filter(|heat| !heat.sizes.is_empty()).collect()
    }

    /// Everybody, beginning with another one in every round.
    fn order(&self, round: u32) -> impl Iterator<Item = &'a dyn Subject> {
        let first = (round as usize).saturating_sub(1) % self.subjects.len().max(1);
        let (after, before) = self.subjects.split_at(first);
        before.iter().chain(after).copied()
    }

    /// Starts one of them, and keeps what it says. Returns why it failed, if it did.
    fn start(
        &self,
        heat: &Heat,
        subject: &dyn Subject,
        run: u64,
        journal: &mut Journal,
    ) -> Result<Option<String>> {
        let Heat { round, case, ref sizes } = *heat;
        let start = Start { case, sizes, check: round == 1, compare: self.compare };
        let mut wrong = None;
        let mut measured = Vec::new();
        let ended = process::run(&mut subject.command(&start), |text| {
            match line::parse(text) {
                Ok(row) => {
                    measured.push(row.bytes);
                    let (subject, bytes, us) = (subject.name(), row.bytes, row.us);
                    journal.add(Record::Time(Time { run, round, subject, case, bytes, us }))?;
                }
                Err(Odd::Wrong(elements)) => wrong = Some(format!("{elements} elements were wrong")),
                Err(Odd::Chatter) => {}
            }
            Ok::<_, CompareError>(())
        })?;
        let absent = sizes.iter().find(|size| !measured.contains(size));
        let absent = absent.map(|size| format!("measured nothing of {size} bytes"));
        let reason = wrong.or(ended.err().map(|ended| ended.to_string())).or(absent);
        if let Some(reason) = reason.clone() {
            let subject = subject.name();
            journal.add(Record::Failure(Failure { run, round, subject, case, reason }))?;
        }
        Ok(reason)
    }
}

impl Heat {
    fn what(&self) -> String {
        format!("{} of {} ranks", self.case.collective, self.case.ranks)
    }

    /// Whether all of them have measured every size, or failed. What is done by some only is
    /// measured again by all, since what is compared must not lie hours apart.
    fn is_done(&self, subjects: &[String], run: u64, records: &[Record]) -> bool {
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
                Record::Time(time) => time.subject == *name && time.bytes == *size,
                Record::Failure(failure) => failure.subject == *name,
                _ => false,
            })
        };
        subjects.iter().all(|name| self.sizes.iter().all(|size| is_done(name, size)))
    }
}

#[cfg(test)]
mod tests;

//! The order of measurements of training, and those that the journal lacks.

use std::io::{IsTerminal, Write, stderr};

use comm_cli::__private::progress::Progress;

use super::line::{self, StepRow};
use super::model::{TrainingCase, TrainingModel};
use super::program::{TrainingArgs, TrainingProgram};
use crate::compare::args::Compare;
use crate::compare::journal::Journal;
use crate::compare::process;
use crate::compare::record::{Record, StepFailure, StepTime};
use crate::error::{Error, Result};

/// The largest relative difference between first steps of different libraries, which sum in
/// different orders and whose variants may send 16-bit floats.
const DIFFERENCE_MAX: f64 = 1e-3;

/// The properties of a model and its first step that do not depend on the library.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstStep {
    pub(super) parameters: usize,
    /// The loss of rank 0.
    pub(super) loss: f64,
    /// The norm of the averaged gradients.
    pub(super) norm: f64,
}

impl FirstStep {
    /// Returns the difference that shows that two programs do not train the same model.
    fn difference(&self, other: &Self) -> Option<String> {
        let differs = |ours: f64, other: f64| (ours - other).abs() > DIFFERENCE_MAX * other.abs();
        if self.parameters != other.parameters {
            Some(format!("it has {} parameters, not {}", self.parameters, other.parameters))
        } else if differs(self.loss, other.loss) {
            Some(format!("the first loss is {}, not {}", self.loss, other.loss))
        } else if differs(self.norm, other.norm) {
            Some(format!("the first gradients have the norm {}, not {}", self.norm, other.norm))
        } else {
            None
        }
    }
}

/// All measurements of training.
#[derive(Debug)]
pub(super) struct TrainingRounds<'a> {
    compare: &'a Compare,
    programs: Vec<Box<dyn TrainingProgram>>,
}

/// One round with a number of ranks, in which all programs run consecutively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TrainingRound {
    run: u64,
    round: u32,
    ranks: usize,
}

impl<'a> TrainingRounds<'a> {
    pub(super) fn new(compare: &'a Compare, programs: Vec<Box<dyn TrainingProgram>>) -> Self {
        Self { compare, programs }
    }

    /// Makes the measurements that the journal lacks, and calls `after_round` after every round.
    pub(super) fn measure<W: Write>(
        &self,
        run: u64,
        journal: &mut Journal,
        out: &mut W,
        after_round: impl Fn(&Journal) -> Result<()>,
    ) -> Result<()> {
        let left: Vec<TrainingRound> =
            self.rounds(run).into_iter().filter(|round| !self.is_done(*round, &journal.records)).collect();
        let progress = Progress::with_estimate(left.len() * self.programs.len());
        for round in left {
            for program in self.order(round.round) {
                let what = format!(
                    "round {}, {} ranks: {}",
                    round.round,
                    round.ranks,
                    program.libraries().join(", ")
                );
                progress.at(what.clone());
                let failure = self.start(round, program, journal)?;
                progress.done(|| match failure {
                    Some(failure) => writeln!(out, "{what}: {failure}"),
                    None if stderr().is_terminal() => Ok(()),
                    None => writeln!(out, "{what}"),
                })?;
            }
            progress.suspended(|| after_round(journal))?;
        }
        Ok(())
    }

    fn rounds(&self, run: u64) -> Vec<TrainingRound> {
        let ranks = || self.compare.ranks.iter().map(|ranks| usize::from(*ranks));
        let rounds = 1..=self.compare.rounds;
        rounds.flat_map(|round| ranks().map(move |ranks| TrainingRound { run, round, ranks })).collect()
    }

    /// Returns all programs, rotated by the round.
    fn order(&self, round: u32) -> impl Iterator<Item = &dyn TrainingProgram> {
        let first = (round as usize).saturating_sub(1) % self.programs.len().max(1);
        let (after, before) = self.programs.split_at(first);
        before.iter().chain(after).map(|program| &**program)
    }

    /// Runs a program, and records its times. Returns the reason if it failed.
    fn start(
        &self,
        at: TrainingRound,
        program: &dyn TrainingProgram,
        journal: &mut Journal,
    ) -> Result<Option<String>> {
        let Compare { samples: pairs, sample_ms: block_ms, .. } = *self.compare;
        let args = TrainingArgs { ranks: at.ranks, pairs, block_ms };
        let mut wrong = None;
        let mut measured = Vec::new();
        let ended = process::run(&mut program.command(&args), |text| {
            let Some(row) = line::parse(text) else { return Ok(()) };
            if let Some(difference) =
                first_step(row.model, at, &journal.records).and_then(|other| row.first.difference(&other))
            {
                wrong.get_or_insert_with(|| format!("{} of {}: {difference}", row.variant, row.model));
                return Ok(());
            }
            measured.push((row.model, row.variant.clone()));
            journal.add(Record::StepTime(record(at, program, row)))
        })?;
        let all =
            TrainingModel::ALL.iter().flat_map(|model| program.variants().iter().map(move |v| (*model, *v)));
        let absent = all.into_iter().find(|(model, variant)| {
            !measured.iter().any(|(measured, name)| measured == model && name == variant)
        });
        let absent = absent.map(|(model, variant)| format!("no measurement of {variant} of {model}"));
        let reason = wrong.or(ended.err().map(|ended| ended.to_string())).or(absent);
        if let Some(reason) = reason.clone() {
            let TrainingRound { run, round, ranks } = at;
            for library in program.libraries() {
                let reason = reason.clone();
                journal.add(Record::StepFailure(StepFailure { run, round, library, ranks, reason }))?;
            }
        }
        Ok::<_, Error>(reason)
    }

    /// Returns whether all programs have measured every model or failed. Otherwise, all measure
    /// again, because compared times must not be hours apart.
    fn is_done(&self, at: TrainingRound, records: &[Record]) -> bool {
        let is_measured = |library: &str, model: TrainingModel| {
            records.iter().any(|record| match record {
                Record::StepTime(time) => {
                    at == TrainingRound { run: time.run, round: time.round, ranks: time.case.ranks }
                        && (time.library.as_str(), time.case.model) == (library, model)
                }
                Record::StepFailure(failure) => {
                    at == TrainingRound { run: failure.run, round: failure.round, ranks: failure.ranks }
                        && failure.library == library
                }
                _ => false,
            })
        };
        let libraries: Vec<String> = self.programs.iter().flat_map(|program| program.libraries()).collect();
        libraries.iter().all(|library| TrainingModel::ALL.iter().all(|model| is_measured(library, *model)))
    }
}

/// Returns the first step of a model that was recorded first in this run.
fn first_step(model: TrainingModel, at: TrainingRound, records: &[Record]) -> Option<FirstStep> {
    let case = TrainingCase { ranks: at.ranks, model };
    records.iter().find_map(|record| match record {
        Record::StepTime(time) if (time.run, time.case) == (at.run, case) => {
            Some(FirstStep { parameters: model.parameters(), loss: time.loss, norm: time.norm })
        }
        _ => None,
    })
}

fn record(at: TrainingRound, program: &dyn TrainingProgram, row: StepRow) -> StepTime {
    let StepRow { model, variant, first, with_us, without_us, overhead_us, exposed_us } = row;
    StepTime {
        run: at.run,
        round: at.round,
        library: program.library(&variant),
        case: TrainingCase { ranks: at.ranks, model },
        with_us,
        without_us,
        overhead_us,
        exposed_us,
        loss: first.loss,
        norm: first.norm,
    }
}

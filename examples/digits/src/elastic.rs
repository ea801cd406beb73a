//! Training with ranks that come and go.

use comm::{Config, ElasticGroup, GrowOptions, ShrinkOptions};

use crate::args::Args;
use crate::console::Console;
use crate::run::{conclude, title, write_chart};
use digits::error::{Error, Result};
use digits::real::Real;
use digits::train::{EpochReport, Settings, Trainer};

/// Trains for all epochs. Goes on when ranks are lost, and admits new ones between two epochs.
pub(crate) fn train<T: Real>(config: &Config, args: &Args) -> Result<()> {
    let settings = Settings { local: None, ..args.settings() };
    let mut group = ElasticGroup::join(config)?;
    let (trainer, epoch, is_shrunk) = start::<T>(&mut group, settings)?;
    let steps = args.epochs.get().saturating_mul(trainer.steps()) as u64;
    let console = Console::new(group.comm().rank(), (!args.no_progress).then_some(steps));
    let title = title(group.comm(), args, &settings);
    let mut run = Run { group, trainer, console, epoch, may_grow: is_shrunk, reports: Vec::new() };
    if !run.group.is_newcomer() {
        run.console.line(&title)?;
        run.console.heading()?;
    }
    while run.epoch <= args.epochs.get() {
        match run.next_epoch() {
            Err(error) if error.is_failure_of_ranks() => run.recover(error)?,
            outcome => outcome?,
        }
    }
    run.console.done();
    write_chart(args, &run.console, &title, &run.reports)?;
    conclude(&mut run.trainer, &run.console)
}

/// Returns a trainer with the state of the group, the epoch to continue with, and whether the group
/// has been shrunk in the meantime.
fn start<T: Real>(group: &mut ElasticGroup, settings: Settings) -> Result<(Trainer<T>, usize, bool)> {
    let mut is_shrunk = false;
    loop {
        match Trainer::join(group.comm(), settings) {
            Ok((trainer, epoch)) => return Ok((trainer, epoch, is_shrunk)),
            Err(error) if error.is_failure_of_ranks() => {
                group.shrink(&ShrinkOptions::default())?;
                is_shrunk = true;
            }
            Err(error) => return Err(error),
        }
    }
}

struct Run<T: Real> {
    group: ElasticGroup,
    trainer: Trainer<T>,
    console: Console,
    /// The epoch to continue with.
    epoch: usize,
    /// Whether the next step of all ranks is to admit others: it is not in a group that has just
    /// grown, whose new ranks go straight on to train.
    may_grow: bool,
    /// The epochs in which this rank has printed.
    reports: Vec<EpochReport>,
}

impl<T: Real> Run<T> {
    fn next_epoch(&mut self) -> Result<()> {
        if self.may_grow {
            let admitted = self.group.grow(&GrowOptions::default())?;
            if admitted > 0 {
                self.may_grow = false;
                self.epoch = self.trainer.continue_with(self.group.comm())?;
                let size = self.group.comm().size();
                self.console.line(&format!("admitted {admitted}, so that {size} ranks train"))?;
            }
        }
        self.may_grow = true;
        let report = self.trainer.epoch(self.epoch, |_| self.console.step())?;
        self.console.row(&report)?;
        self.reports.push(report);
        self.epoch += 1;
        Ok(())
    }

    /// Goes on with the ranks that remain.
    fn recover(&mut self, error: Error) -> Result<()> {
        self.console.line(&format!("{error}"))?;
        self.may_grow = true;
        loop {
            let ranks = self.group.shrink(&ShrinkOptions::default())?.ranks;
            self.console.set_rank(self.group.comm().rank());
            match self.trainer.continue_with(self.group.comm()) {
                Ok(epoch) => {
                    self.epoch = epoch;
                    self.reports.retain(|report| report.epoch < epoch);
                    let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                    let ranks = ranks.join(", ");
                    let line = format!("continues in epoch {epoch} with the former ranks {ranks}");
                    return self.console.line(&line);
                }
                Err(error) if error.is_failure_of_ranks() => self.console.line(&format!("{error}"))?,
                Err(error) => return Err(error),
            }
        }
    }
}

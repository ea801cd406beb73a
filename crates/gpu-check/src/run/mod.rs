//! Runs cases and measurements, in processes that somebody knows how to start.

mod process;
mod rival;
mod speed;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::case::CONNECT;
use crate::record::{Ended, Record, Verdict};
use crate::{CASES, Case, Part, Place, Ranks, Several, place};
use process::{Group, Report};

pub use speed::Measure;

/// Starts processes that [`play`](crate::play) what they are told.
pub struct Runner<'a> {
    /// A command whose process plays the part that its environment names.
    pub start: &'a dyn Fn() -> io::Result<Command>,
    /// The device that a single rank plays on.
    pub device: usize,
    /// How long a call may take that is to succeed.
    pub patience: Duration,
    /// How long a case may take as a whole.
    pub limit: Duration,
}

impl std::fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { start: _, device, patience, limit } = self;
        let known = (device, patience, limit);
        f.debug_tuple("Runner").field(&known).finish()
    }
}

/// Why nothing can be run at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No process could look around, for example because there is no device.
    #[error("{0}")]
    Nowhere(String),
    /// A process cannot be started, or a file not be written.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system says.
        r#source: io::Error,
    },
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { doing, source }
}

impl Runner<'_> {
    /// Looks around.
    ///
    /// # Errors
    /// If nothing can be run here, why.
    pub fn look(&self) -> Result<Place, RunError> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let parts = self.parts(place::NAME, &[self.device], folder.path());
        let report = self.group(&parts, &[])?.ended(self.limit, None);
        if report.verdict != Verdict::Passed {
            return Err(RunError::Nowhere(report.words));
        }
        Place::found(&parts[0]).map_err(failed("read what was found"))
    }

    /// Runs the cases whose names begin with one of `names`, or all if there are none, and hands on each end as it comes.
    /// `several` says who plays those of several ranks, or why nobody can.
    ///
    /// # Errors
    /// If processes cannot be started, and what `record` answers.
    pub fn cases(
        &self,
        names: &[String],
        several: &Result<Several, String>,
        record: &mut dyn FnMut(Record) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let is_wanted =
            |case: &&Case| names.is_empty() || names.iter().any(|name| case.name.starts_with(name.as_str()));
        let wanted: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
        for case in wanted.iter().filter(|case| case.ranks != Ranks::Several) {
            record(Record::Case(self.case(case, &[self.device], &[])?))?;
        }
        let mut several = several.clone();
        for case in wanted.iter().filter(|case| case.ranks != Ranks::One) {
            let ended = match &several {
                Ok(Several { devices, environment }) => self.case(case, devices, environment)?,
                Err(why) => not_run(case, why),
            };
            if case.name == CONNECT && ended.verdict == Verdict::Failed {
                several = Err("ranks cannot be connected".into());
            }
            record(Record::Case(ended))?;
        }
        Ok(())
    }

    /// Runs one case, with a rank for each device.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn case(
        &self,
        case: &Case,
        devices: &[usize],
        environment: &[(String, String)],
    ) -> Result<Ended, RunError> {
        let folder = tempfile::tempdir().map_err(failed("make a folder"))?;
        let parts = self.parts(case.name, devices, folder.path());
        let Report { verdict, words, seconds } =
            self.group(&parts, environment)?.ended(self.limit, case.killed);
        Ok(Ended { case: case.name.into(), ranks: devices.len(), verdict, words, seconds })
    }

    fn parts(&self, name: &str, devices: &[usize], folder: &Path) -> Vec<Part> {
        let part = |(rank, device): (usize, &usize)| Part {
            name: name.into(),
            rank,
            size: devices.len(),
            device: *device,
            folder: PathBuf::from(folder),
            patience: self.patience,
        };
        devices.iter().enumerate().map(part).collect()
    }

    /// Starts a process for each part.
    fn group(&self, parts: &[Part], environment: &[(String, String)]) -> Result<Group, RunError> {
        let mut group = Group::default();
        for part in parts {
            let mut command = (self.start)().map_err(failed("tell how a process is started"))?;
            process::on_this_machine(&mut command, environment);
            part.give_to(&mut command).map_err(io::Error::from).map_err(failed("tell a process its part"))?;
            group.start(part, &mut command).map_err(failed("start a process"))?;
        }
        Ok(group)
    }
}

fn not_run(case: &Case, why: &str) -> Ended {
    let words = why.to_owned();
    Ended { case: case.name.into(), ranks: 2, verdict: Verdict::NotRun, words, seconds: 0.0 }
}

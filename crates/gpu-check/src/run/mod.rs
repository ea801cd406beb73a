//! Runs cases and measurements in separate processes.

mod process;
mod session;
mod speed;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::case::CONNECT;
use crate::record::{CaseResult, Record, Verdict};
use crate::{CASES, Case, CaseSpec, Machine, Placement, Ranks, machine};
use process::{Group, Report};

pub use speed::Measure;

/// Runs cases by starting a process for each rank.
pub struct Runner<'a> {
    /// Returns a command whose process calls [`run_rank`](crate::run_rank).
    pub start: &'a dyn Fn() -> io::Result<Command>,
    /// The device of cases with one rank.
    pub device: usize,
    /// The timeout of calls that must succeed.
    pub call_timeout: Duration,
    /// The maximum duration of a case.
    pub limit: Duration,
}

impl std::fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { start: _, device, call_timeout, limit } = self;
        let known = (device, call_timeout, limit);
        f.debug_tuple("Runner").field(&known).finish()
    }
}

/// The reason why the suite cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The machine could not be inspected, for example because it has no device.
    #[error("{0}")]
    Nowhere(String),
    /// A process could not be started, or a file could not be written.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation.
        doing: &'static str,
        /// The error of the operating system.
        r#source: io::Error,
    },
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { doing, source }
}

impl Runner<'_> {
    /// Inspects the machine.
    ///
    /// # Errors
    /// The reason why no case can run.
    pub fn inspect(&self) -> Result<Machine, RunError> {
        let folder = tempfile::tempdir().map_err(failed("create a folder"))?;
        let specs = self.specs(machine::NAME, &[self.device], folder.path());
        let report = self.group(&specs, &[])?.wait(self.limit, None);
        if report.verdict != Verdict::Passed {
            return Err(RunError::Nowhere(report.message));
        }
        Machine::read(&specs[0]).map_err(failed("read the description of the machine"))
    }

    /// Runs the cases whose names start with one of `names`, or all cases if `names` is empty, and
    /// calls `record` with each result. `several` is the placement of cases with several ranks, or
    /// the reason why they cannot run.
    ///
    /// # Errors
    /// If a process cannot be started, or `record` fails.
    pub fn cases(
        &self,
        names: &[String],
        several: &Result<Placement, String>,
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
                Ok(Placement { devices, environment }) => self.case(case, devices, environment)?,
                Err(why) => not_run(case, why),
            };
            if case.name == CONNECT && ended.verdict == Verdict::Failed {
                several = Err("ranks cannot connect".into());
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
    ) -> Result<CaseResult, RunError> {
        let folder = tempfile::tempdir().map_err(failed("create a folder"))?;
        let specs = self.specs(case.name, devices, folder.path());
        let Report { verdict, message, seconds } =
            self.group(&specs, environment)?.wait(self.limit, case.killed);
        Ok(CaseResult { case: case.name.into(), ranks: devices.len(), verdict, message, seconds })
    }

    fn specs(&self, name: &str, devices: &[usize], folder: &Path) -> Vec<CaseSpec> {
        let spec = |(rank, device): (usize, &usize)| CaseSpec {
            name: name.into(),
            rank,
            size: devices.len(),
            device: *device,
            folder: PathBuf::from(folder),
            call_timeout: self.call_timeout,
        };
        devices.iter().enumerate().map(spec).collect()
    }

    /// Starts a process for each rank.
    fn group(&self, specs: &[CaseSpec], environment: &[(String, String)]) -> Result<Group, RunError> {
        let mut group = Group::default();
        for spec in specs {
            let mut command = (self.start)().map_err(failed("find this program"))?;
            process::set_environment(&mut command, environment);
            spec.give_to(&mut command)
                .map_err(io::Error::from)
                .map_err(failed("pass arguments to a process"))?;
            group.start(spec, &mut command).map_err(failed("start a process"))?;
        }
        Ok(group)
    }
}

fn not_run(case: &Case, why: &str) -> CaseResult {
    let message = why.to_owned();
    CaseResult { case: case.name.into(), ranks: 2, verdict: Verdict::NotRun, message, seconds: 0.0 }
}

//! Measures the limits of the machine with the program `limits` of the package `benches`.

use std::process::Command;

use serde::Deserialize;

use super::journal::Journal;
use super::record::{Limit, Record};
use super::{built, process};
use crate::error::{Error, Result};

/// The name of the program.
pub(crate) const PROGRAM: &str = "limits";

/// A line of the output of `limits`.
#[derive(Deserialize)]
struct Line {
    limit: String,
    detail: String,
    value: f64,
    unit: String,
}

/// Adds all limits to the journal at once, so that an interrupted run measures them again.
pub(crate) fn measure(run: u64, journal: &mut Journal) -> Result<()> {
    let limits = read(&mut Command::new(built(PROGRAM)), run)?;
    limits.into_iter().try_for_each(|limit| journal.add(Record::Limit(limit)))
}

/// Runs the program, and returns the limits that it prints.
pub(crate) fn read(command: &mut Command, run: u64) -> Result<Vec<Limit>> {
    let mut limits = Vec::new();
    let ended = process::run(command, |line| {
        let line: Line = serde_json::from_str(line)
            .map_err(|source| Error::Json { what: "the output of limits".into(), source })?;
        let Line { limit, detail, value, unit } = line;
        limits.push(Limit { run, limit, detail, value, unit });
        Ok::<_, Error>(())
    })?;
    match ended {
        Ok(()) => Ok(limits),
        Err(ended) => Err(Error::Failed { program: PROGRAM.into(), reason: ended.to_string() }),
    }
}

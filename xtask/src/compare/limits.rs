//! What the machine can do: measured by the program `limits` of the package `benches`, which is
//! built with optimisation.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::error::{CompareError, Result};
use super::journal::Journal;
use super::process;
use super::record::{Limit, Record};

/// A line of that program.
#[derive(Deserialize)]
struct Line {
    limit: String,
    detail: String,
    value: f64,
    unit: String,
}

/// Adds what it prints to a journal. Only all of it counts, so that a run that is stopped here
/// measures it again.
pub(crate) fn measure(program: &Path, run: u64, journal: &mut Journal) -> Result<()> {
    let mut limits = Vec::new();
    let ended = process::run(&mut Command::new(program), |line| {
        let line: Line = serde_json::from_str(line).map_err(CompareError::Record)?;
        let Line { limit, detail, value, unit } = line;
        limits.push(Limit { run, limit, detail, value, unit });
        Ok::<_, CompareError>(())
    })?;
    if let Err(ended) = ended {
        return Err(CompareError::Failed { program: "limits".into(), reason: ended.to_string() });
    }
    limits.into_iter().try_for_each(|limit| journal.add(Record::Limit(limit)))
}

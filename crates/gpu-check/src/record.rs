//! The records of a journal, one JSON object per line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{CaseError, Outcome};
use crate::{Machine, Placement};

/// The result of a case, or of one of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// All checks succeeded.
    Passed,
    /// A check failed.
    Failed,
    /// The case was not run, for the reason in the message.
    NotRun,
}

/// The result that a rank writes at its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankResult {
    pub(crate) verdict: Verdict,
    /// The reason why it did not pass.
    pub(crate) message: String,
    /// The time in seconds since the device and the library were opened.
    pub(crate) seconds: f64,
}

impl RankResult {
    pub(crate) fn of(outcome: Outcome) -> Self {
        let (verdict, message) = match outcome {
            Ok(()) => (Verdict::Passed, String::new()),
            Err(CaseError::NotRun(why)) => (Verdict::NotRun, why),
            Err(error) => (Verdict::Failed, error.to_string()),
        };
        Self { verdict, message, seconds: 0.0 }
    }
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The name of the case.
    pub case: String,
    /// The number of ranks.
    pub ranks: usize,
    /// The result.
    pub verdict: Verdict,
    /// The reason why it did not pass.
    pub message: String,
    /// The time in seconds of the slowest rank since its device and library were opened; 0 if the
    /// case was not run.
    pub seconds: f64,
}

/// An implementation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Subject {
    /// This library.
    Ours,
    /// A copy of the same number of bytes within device memory.
    Copy,
    /// PyTorch, with the same libnccl.
    Torch,
}

/// A measured time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The collective, by NCCL's name.
    pub collective: String,
    /// The number of ranks.
    pub ranks: usize,
    /// The bytes of the larger buffer.
    pub bytes: usize,
    /// The round; times of one round are measured consecutively.
    pub round: usize,
    /// The measured implementation.
    pub subject: Subject,
    /// The average time in seconds of consecutive calls on the slowest rank.
    pub seconds: f64,
}

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub enum Record {
    /// The machine of all following records.
    Machine(Machine),
    /// The placement of several ranks.
    Placement(Placement),
    /// The result of a case.
    Case(CaseResult),
    /// A measured time.
    Speed(Speed),
    /// A measurement that was not made, with the reason.
    NotMeasured(String),
}

/// The error of a journal that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// A line is not a record.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The error of the parser.
        r#source: serde_json::Error,
    },
}

/// Reads all records of a journal.
///
/// # Errors
/// If the file cannot be read, or a line is not a record.
pub fn read(path: &Path) -> Result<Vec<Record>, JournalError> {
    let text =
        fs::read_to_string(path).map_err(|source| JournalError::File { path: path.to_owned(), source })?;
    let record = |(index, line)| {
        serde_json::from_str(line).map_err(|source| JournalError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })
    };
    text.lines().enumerate().map(record).collect()
}

/// Returns whether any case failed.
#[must_use]
pub fn has_failed(records: &[Record]) -> bool {
    records.iter().any(|record| matches!(record, Record::Case(CaseResult { verdict: Verdict::Failed, .. })))
}

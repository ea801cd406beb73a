//! What is written down, a line of JSON for each thing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::trouble::{Outcome, Trouble};
use crate::{Place, Several};

/// How a case, or one rank of it, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// All was as it is to be.
    Passed,
    /// Something was not.
    Failed,
    /// It was not run; the words say why.
    NotRun,
}

/// What a process writes down at its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ending {
    pub(crate) verdict: Verdict,
    /// Why it did not pass, or what else it has to say.
    pub(crate) words: String,
    /// From when device and library were open.
    pub(crate) seconds: f64,
}

impl Ending {
    pub(crate) fn of(outcome: Outcome) -> Self {
        let (verdict, words) = match outcome {
            Ok(()) => (Verdict::Passed, String::new()),
            Err(Trouble::NotRun(why)) => (Verdict::NotRun, why),
            Err(trouble) => (Verdict::Failed, trouble.to_string()),
        };
        Self { verdict, words, seconds: 0.0 }
    }
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The name of the case.
    pub case: String,
    /// How many ranks played it, or were to.
    pub ranks: usize,
    /// How it ended.
    pub verdict: Verdict,
    /// Why it did not pass.
    pub words: String,
    /// How long it took the slowest rank, from when its device and library were open; 0 if it was not run.
    pub seconds: f64,
}

/// Whose time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Subject {
    /// This library.
    Ours,
    /// A copy of as many bytes, from one place in the device's memory to another.
    Copy,
    /// PyTorch, with the same libnccl.
    Torch,
}

/// A time that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// What was called, by NCCL's name.
    pub collective: String,
    /// How many ranks called it.
    pub ranks: usize,
    /// The bytes of its larger buffer.
    pub bytes: usize,
    /// Times of one round are measured one right after the other.
    pub round: usize,
    /// Who called it.
    pub subject: Subject,
    /// The time of one call on the slowest rank, out of several in a row.
    pub seconds: f64,
}

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub enum Record {
    /// Where all that follows was run.
    Place(Place),
    /// Which ranks played the cases of several.
    Several(Several),
    /// How a case ended.
    Case(Ended),
    /// A time that was measured.
    Speed(Speed),
    /// What was not measured, and why.
    NotMeasured(String),
}

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        r#source: io::Error,
    },
    /// A line is none of a journal.
    #[error("{}, line {line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        r#source: serde_json::Error,
    },
}

/// All lines of a journal.
///
/// # Errors
/// If it cannot be read, or has other lines.
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

/// Whether any case failed.
#[must_use]
pub fn has_failed(records: &[Record]) -> bool {
    records.iter().any(|record| matches!(record, Record::Case(Ended { verdict: Verdict::Failed, .. })))
}

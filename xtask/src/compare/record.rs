//! The records of a journal.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::collective::Collective;
use super::machine::Machine;
use super::training::TrainingCase;

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Record {
    Run(Run),
    Version(Version),
    Missing(Missing),
    Limit(Limit),
    RoundLimit(RoundLimit),
    Time(Time),
    Failure(Failure),
    StepTime(StepTime),
    StepFailure(StepFailure),
}

/// A run: measurements of one commit on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The start in seconds since 1970.
    pub(crate) run: u64,
    /// The date, such as 2026-11-21.
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) machine: Machine,
}

/// The version of a library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) run: u64,
    pub(crate) library: String,
    pub(crate) version: String,
}

/// A library that is not installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Missing {
    pub(crate) run: u64,
    pub(crate) library: String,
    /// The reason, and an explanation of its installation.
    pub(crate) reason: String,
}

/// A limit of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) run: u64,
    /// Its name, such as memcpy.
    pub(crate) limit: String,
    /// The conditions of the measurement.
    pub(crate) detail: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

/// A limit of the machine, measured directly before the libraries measured a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundLimit {
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) case: Case,
    #[serde(flatten)]
    pub(crate) limit: Limit,
}

/// A collective with a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
    /// Whether calls use copies of their buffers in turn, which do not fit into the cache together.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) rotates: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, ranks, rotates } = self;
        write!(f, "{collective} of {ranks} ranks")?;
        f.write_str(if *rotates { ", from memory" } else { "" })
    }
}

/// The median time of a call in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Time {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) library: String,
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) bytes: usize,
    /// Microseconds.
    pub(crate) us: f64,
}

/// A measurement that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) library: String,
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) reason: String,
}

/// The median times of training steps in a round, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepTime {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) library: String,
    #[serde(flatten)]
    pub(crate) case: TrainingCase,
    pub(crate) with_us: f64,
    pub(crate) without_us: f64,
    /// The median difference of blocks with and without synchronization.
    pub(crate) overhead_us: f64,
    /// The time from the end of backward to the end of synchronization, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exposed_us: Option<f64>,
    /// The first loss of rank 0.
    pub(crate) loss: f64,
    /// The norm of the first averaged gradients.
    pub(crate) norm: f64,
}

/// A program for training that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepFailure {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) library: String,
    pub(crate) ranks: usize,
    pub(crate) reason: String,
}

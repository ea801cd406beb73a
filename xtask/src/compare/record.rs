//! What is known of a comparison, piece by piece.

use serde::{Deserialize, Serialize};

use super::collective::Collective;
use super::machine::Machine;

/// A line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Record {
    Run(Run),
    Subject(Subject),
    Missing(Missing),
    Limit(Limit),
    Time(Time),
    Failure(Failure),
}

/// Measurements of one state of the library on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Seconds since 1970, at its beginning.
    pub(crate) run: u64,
    /// As in 2026-11-21.
    pub(crate) date: String,
    /// Of this library, as git calls it.
    pub(crate) commit: String,
    pub(crate) machine: Machine,
}

/// Someone who is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) run: u64,
    pub(crate) subject: String,
    pub(crate) version: String,
}

/// Someone who is not, because it is not installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Missing {
    pub(crate) run: u64,
    pub(crate) subject: String,
    /// Why, and how to change that.
    pub(crate) reason: String,
}

/// What the machine can do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) run: u64,
    /// As in memcpy.
    pub(crate) limit: String,
    /// Under which circumstances.
    pub(crate) detail: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

/// A collective among so many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ranks: usize,
}

/// How long a call took, in the median of a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Time {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) subject: String,
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) bytes: usize,
    /// Microseconds.
    pub(crate) us: f64,
}

/// A program that did not measure what it was asked to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) run: u64,
    pub(crate) round: u32,
    pub(crate) subject: String,
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) reason: String,
}

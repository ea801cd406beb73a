//! The content of an answer.

use comm_core::{CallMetrics, Error, Metrics, ObservedComms, Result};
use serde::{Deserialize, Serialize};

use crate::flight::{FlightDump, Origin};

/// The state of a rank, in the form of an answer: JSON with the names of these fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MonitorReport {
    /// [`MonitorReport::VERSION`].
    pub version: u32,
    /// The last calls of each communicator, in the order of creation.
    pub records: Vec<FlightDump>,
    /// The counters of each communicator, in the same order.
    pub metrics: Vec<ReportedMetrics>,
}

/// The [`Metrics`] of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportedMetrics {
    /// The number of ranks in the group.
    pub size: usize,
    /// The completed calls by collective and algorithm.
    pub calls: Vec<ReportedCalls>,
    /// The number of failures.
    pub failures: u64,
    /// The time that calls waited for each member, in nanoseconds.
    pub waited_for_ns: Vec<u64>,
}

/// The [`CallMetrics`] of a collective with an algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportedCalls {
    /// The name of the collective.
    pub collective: String,
    /// The name of the algorithm.
    pub algorithm: String,
    /// The number of calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time in nanoseconds.
    pub time_ns: u64,
    /// The number of calls in each bucket of
    /// [`DurationHistogram`](comm_core::DurationHistogram).
    pub durations: Vec<u64>,
}

impl MonitorReport {
    /// The version of the format.
    pub const VERSION: u32 = 1;

    /// Creates the report of these communicators, with at most this many last calls of each.
    pub(super) fn new(comms: &ObservedComms, origin: &Origin, calls_max: usize) -> Self {
        let comms = comms.all();
        let record = |mut record: comm_core::FlightRecord| {
            record.calls.drain(..record.calls.len().saturating_sub(calls_max));
            origin.dump(&record)
        };
        Self {
            version: Self::VERSION,
            records: comms.iter().map(|comm| record(comm.flight_record())).collect(),
            metrics: comms.iter().map(|comm| ReportedMetrics::new(&comm.metrics())).collect(),
        }
    }

    /// Parses an answer.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not an answer of this version, or contradicts itself.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let malformed = |reason: String| Error::malformed("the answer of a rank", reason);
        let report: Self = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        if report.version != Self::VERSION {
            return Err(malformed(format!("version {}, and not {}", report.version, Self::VERSION)));
        }
        report.records.iter().try_for_each(FlightDump::check)?;
        Ok(report)
    }
}

impl ReportedMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            size: metrics.group.size(),
            calls: metrics.calls.iter().map(ReportedCalls::new).collect(),
            failures: metrics.failures,
            waited_for_ns: metrics.waited_for.iter().map(|time| nanos(time.as_nanos())).collect(),
        }
    }
}

impl ReportedCalls {
    fn new(calls: &CallMetrics) -> Self {
        Self {
            collective: calls.collective.name().into(),
            algorithm: calls.algorithm.clone().into_owned(),
            calls: calls.calls,
            bytes: calls.bytes,
            time_ns: nanos(calls.time.as_nanos()),
            durations: calls.durations.counts().to_vec(),
        }
    }
}

fn nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

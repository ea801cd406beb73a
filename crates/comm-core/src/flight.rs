//! The record of the last calls of a communicator, which shows why a program hangs or failed.

use std::sync::Arc;
use std::time::Instant;

use crate::{Error, Group, Signature};

/// The last calls of a communicator on this rank.
///
/// Records of several ranks can be compared: equal [`RecordedCall::sequence`] numbers belong to the
/// same collective.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FlightRecord {
    /// The group, as seen by this member.
    pub group: Group,
    /// The members' ranks in the world, in the order of their ranks in the group.
    pub members: Vec<usize>,
    /// The last calls, the oldest first.
    pub calls: Vec<RecordedCall>,
    /// The fatal error of the communicator, if it has failed.
    pub failure: Option<RecordedFailure>,
    /// Whether the times of all calls are exact. Otherwise those of short calls are of a coarse
    /// clock.
    pub exact_times: bool,
}

impl FlightRecord {
    /// Creates a record without calls.
    #[must_use]
    pub const fn new(group: Group, members: Vec<usize>) -> Self {
        Self { group, members, calls: Vec::new(), failure: None, exact_times: false }
    }
}

/// A call of a [`FlightRecord`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedCall {
    /// Its sequence number. Number 0 is the call in which the members agree on their settings.
    pub sequence: u64,
    /// The call.
    pub signature: Signature,
    /// Its state.
    pub state: CallState,
    /// The time at which it started, by the coarse clock of the transport if the call is short.
    pub started: Instant,
    /// The time at which it completed or failed, by the same clock.
    pub ended: Option<Instant>,
    /// The ranks that it waited for itself when it failed, or when it last announced that it was
    /// blocked. Empty for a call that completed, or that has not been blocked for long.
    pub waiting_for: Vec<usize>,
}

impl RecordedCall {
    /// Creates the record of a call that has not ended.
    #[must_use]
    pub const fn new(sequence: u64, signature: Signature, started: Instant) -> Self {
        Self { sequence, signature, state: CallState::Started, started, ended: None, waiting_for: Vec::new() }
    }
}

/// The state of a [`RecordedCall`]. A call is numbered when it starts, so no call of a record is
/// merely scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// It has started, and neither completed nor failed.
    Started,
    /// This rank has done its part and has its result.
    Completed,
    /// It failed with the error of the record.
    Failed,
}

/// The fatal error of a communicator.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedFailure {
    /// The call that failed; the next one if the communicator failed between two calls.
    pub sequence: u64,
    /// The error, which names ranks of the group.
    pub error: Error,
}

impl RecordedFailure {
    /// Creates the failure of this call.
    #[must_use]
    pub const fn new(sequence: u64, error: Error) -> Self {
        Self { sequence, error }
    }
}

/// A function that gets the record of each communicator that fails, or that is closed, if it is
/// configured so.
///
/// It runs on the thread that detected the failure, after the other ranks were informed, and before
/// the error is returned; or on the thread that closes the communicator. It must not panic or use
/// the communicator.
#[derive(Clone)]
pub struct FlightSink(Arc<dyn Fn(&FlightRecord) + Send + Sync>);

impl FlightSink {
    /// Creates a sink from a function.
    pub fn new(sink: impl Fn(&FlightRecord) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Passes the record of a communicator that failed, or was closed, to the function.
    pub fn record(&self, record: &FlightRecord) {
        (self.0)(record);
    }
}

/// Two sinks are equal if they are clones.
impl PartialEq for FlightSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for FlightSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlightSink").finish_non_exhaustive()
    }
}

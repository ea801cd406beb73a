//! The content of a file.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comm_core::{CallState, Error, FlightRecord, Group, GroupId, RecordedCall, RecordedFailure, Result};
use serde::{Deserialize, Serialize};

/// The last calls of one communicator on one rank, in the form of a file: JSON with the names of
/// these fields. Times are in nanoseconds since 1970, by the clock of the rank's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlightDump {
    /// [`FlightDump::VERSION`].
    pub version: u32,
    /// The id of the job.
    pub job: u64,
    /// The [`GroupId`] of the communicator, 0 for the world.
    pub group: u64,
    /// The rank in the group.
    pub rank: usize,
    /// The number of ranks in the group.
    pub size: usize,
    /// The members' ranks in the world, in the order of their ranks in the group.
    pub members: Vec<usize>,
    /// The id of the process.
    pub pid: u32,
    /// The name of the rank's host.
    #[serde(default)]
    pub host: String,
    /// The boot id of the rank's host. Records with the same id have times of the same clock.
    #[serde(default)]
    pub boot_id: String,
    /// Whether the times of all calls are exact. Otherwise those of calls that neither wait nor
    /// move more than 64 KiB are of a clock that advances every few milliseconds.
    #[serde(default)]
    pub exact_times: bool,
    /// The time at which the record was taken.
    pub written_ns: u64,
    /// The fatal error, if the communicator has failed.
    pub failure: Option<DumpedFailure>,
    /// The last calls, the oldest first.
    pub calls: Vec<DumpedCall>,
}

/// The fatal error of a [`FlightDump`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DumpedFailure {
    /// The call that failed; the next one if the communicator failed between two calls.
    pub sequence: u64,
    /// The kind of the error: `timeout`, `peer_lost`, `desync`, `aborted` or `other`.
    pub kind: String,
    /// The text of the error.
    pub error: String,
    /// The ranks of the group that the error names: those that did not arrive or were lost, the two
    /// in different calls, or the one that aborted.
    pub ranks: Vec<usize>,
}

/// A call of a [`FlightDump`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DumpedCall {
    /// Its number. Equal numbers belong to the same collective on all ranks.
    pub sequence: u64,
    /// All parts of the call that must be equal on every rank, as text.
    pub signature: String,
    /// The name of the collective, as in `all_reduce`.
    pub collective: String,
    /// The name of the operator, for reductions.
    pub op: Option<String>,
    /// The name of the element type, unless no data moves.
    pub dtype: Option<String>,
    /// The number of elements, as in [`Signature::count`](crate::Signature::count).
    pub count: u64,
    /// The root, for rooted collectives.
    pub root: Option<usize>,
    /// The algorithm.
    pub algorithm: String,
    /// Its state.
    pub state: DumpedState,
    /// The time at which it started; see [`FlightDump::exact_times`].
    pub started_ns: u64,
    /// The time at which it completed or failed.
    pub ended_ns: Option<u64>,
    /// The ranks that it waited for itself when it failed or last announced that it was blocked.
    pub waiting_for: Vec<usize>,
}

/// The state of a [`DumpedCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DumpedState {
    /// It has neither completed nor failed.
    Started,
    /// The rank has its result.
    Completed,
    /// It failed with the error of the file.
    Failed,
}

impl FlightDump {
    /// The version of the format.
    pub const VERSION: u32 = 1;

    /// Converts a record to the form of a file, with the current time.
    #[must_use]
    pub fn new(record: &FlightRecord, job: u64) -> Self {
        let clock = Clock::now();
        Self {
            version: Self::VERSION,
            job,
            group: record.group.id().0,
            rank: record.group.rank(),
            size: record.group.size(),
            members: record.members.clone(),
            pid: std::process::id(),
            host: first_line("/proc/sys/kernel/hostname"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            exact_times: record.exact_times,
            written_ns: clock.unix_ns(clock.now),
            failure: record.failure.as_ref().map(DumpedFailure::new),
            calls: record.calls.iter().map(|call| DumpedCall::new(call, &clock)).collect(),
        }
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    /// [`Error::Malformed`](crate::Error::Malformed) if it is not a file of this version, or
    /// contradicts itself.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let malformed = |reason: String| Error::malformed("the record of a rank", reason);
        let dump: Self = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        dump.check()?;
        Ok(dump)
    }

    /// Returns an error if it is not of this version, or contradicts itself.
    pub(crate) fn check(&self) -> Result<()> {
        let malformed = |reason: String| Error::malformed("the record of a rank", reason);
        if self.version != Self::VERSION {
            return Err(malformed(format!("version {}, and not {}", self.version, Self::VERSION)));
        }
        if !(1..=Group::SIZE_MAX).contains(&self.size)
            || self.rank >= self.size
            || self.members.len() != self.size
        {
            let (rank, size, members) = (self.rank, self.size, self.members.len());
            return Err(malformed(format!("rank {rank} of {size}, with {members} members")));
        }
        if !self.calls.is_sorted_by(|one, next| one.sequence < next.sequence) {
            return Err(malformed("the numbers of its calls do not increase".into()));
        }
        Ok(())
    }

    /// Returns the rank in the world.
    #[must_use]
    pub fn world_rank(&self) -> usize {
        self.members.get(self.rank).copied().unwrap_or(self.rank)
    }

    /// Returns the name of the file in its folder.
    #[must_use]
    pub fn file_name(&self) -> String {
        let group = if self.group == GroupId::WORLD.0 {
            "world".to_owned()
        } else {
            format!("group-{:016x}", self.group)
        };
        format!("{group}-rank-{:05}.json", self.world_rank())
    }
}

impl DumpedFailure {
    fn new(failure: &RecordedFailure) -> Self {
        let (kind, ranks) = match failure.error.root_cause() {
            Error::Timeout { waiting_for, .. } => ("timeout", waiting_for.clone()),
            Error::PeerLost { peer, .. } => ("peer_lost", vec![*peer]),
            Error::Desync(desync) => ("desync", vec![desync.rank, desync.peer]),
            Error::Aborted { by, .. } => ("aborted", vec![*by]),
            _ => ("other", Vec::new()),
        };
        Self { sequence: failure.sequence, kind: kind.into(), error: failure.error.to_string(), ranks }
    }
}

impl DumpedCall {
    fn new(call: &RecordedCall, clock: &Clock) -> Self {
        let signature = &call.signature;
        let op = signature.op.map(|op| op.name().to_owned());
        Self {
            sequence: call.sequence,
            signature: signature.to_string(),
            collective: signature.collective.name().into(),
            op: op.or_else(|| signature.user_op.as_deref().map(str::to_owned)),
            dtype: signature.dtype.map(|dtype| dtype.to_string()),
            count: signature.count,
            root: signature.root,
            algorithm: signature.algorithm.clone().into_owned(),
            state: match call.state {
                CallState::Completed => DumpedState::Completed,
                CallState::Failed => DumpedState::Failed,
                _ => DumpedState::Started,
            },
            started_ns: clock.unix_ns(call.started),
            ended_ns: call.ended.map(|ended| clock.unix_ns(ended)),
            waiting_for: call.waiting_for.clone(),
        }
    }
}

/// Returns the first line of a file of the kernel, empty if it cannot be read.
fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The same moment on two clocks.
struct Clock {
    now: Instant,
    since_1970: Duration,
}

impl Clock {
    fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { now: Instant::now(), since_1970 }
    }

    /// Converts an instant, which may be in the future in a simulation.
    fn unix_ns(&self, at: Instant) -> u64 {
        let later = self.since_1970 + at.saturating_duration_since(self.now);
        let time = later.saturating_sub(self.now.saturating_duration_since(at));
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

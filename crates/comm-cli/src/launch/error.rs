//! What can go wrong in a launch, and which exit code says so.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::devices::DevicesError;

/// Shells and launchers report death by signal `s` as `128 + s`.
const SIGNAL_BASE: i32 = 128;

/// Why a launch did not end with every rank exiting 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The caller asked for zero ranks.
    #[error("a launch needs at least one rank")]
    NoRanks,
    /// This machine does not allow so many ranks; none was started.
    #[error("cannot start {ranks} ranks: {limit} allows {most}; take fewer ranks or raise the limit")]
    TooManyRanks {
        /// How many were asked for.
        ranks: usize,
        /// How many at most can be started.
        most: usize,
        /// The limit that says so.
        limit: &'static str,
    },
    /// The caller tried to set a variable whose value is the launcher's to choose.
    #[error("{0} is set by the launcher and cannot be given")]
    ReservedVariable(&'static str),
    /// The ranks could not be shown a device each; none was started.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// There is no such program; no rank is left behind.
    #[error("program not found: {}", program.display())]
    ProgramNotFound {
        /// The program as the caller named it.
        program: OsString,
    },
    /// The program exists but could not be started; no rank is left behind.
    #[error("cannot start rank {rank} ({})", program.display())]
    Spawn {
        /// The first rank that could not be started.
        rank: usize,
        /// The program as the caller named it.
        program: OsString,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The store, where the ranks meet, could not be served.
    #[error("cannot serve the store at {address}: {error}")]
    Store {
        /// The address that was to be bound; port 0 stands for any free port.
        address: SocketAddr,
        /// What went wrong.
        error: Box<comm::Error>,
    },
    /// A rank failed, and the launcher ended the others.
    #[error("{0}")]
    RankFailed(RankFailure),
    /// The launcher itself was asked to stop, and passed the signal on to every rank.
    #[error("interrupted by {}", SignalName(*signal))]
    Interrupted {
        /// The first signal that arrived.
        signal: i32,
    },
    /// The operating system refused what supervising ranks needs; no rank is left behind.
    #[error("cannot {what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the operating system answered.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code that tells a shell what happened: the failed rank's own code, `128 + signal`
    /// for a rank that was killed and for an interrupted launch, 127 for a missing program, 126 for
    /// one that cannot be executed.
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Self::RankFailed(RankFailure { ending: Ending::Code(code), .. }) => *code,
            Self::RankFailed(RankFailure { ending: Ending::Signal(signal), .. })
            | Self::Interrupted { signal } => SIGNAL_BASE + signal,
            Self::ProgramNotFound { .. } => 127,
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 126,
            Self::Spawn { .. }
            | Self::NoRanks
            | Self::TooManyRanks { .. }
            | Self::ReservedVariable(_)
            | Self::Devices(_)
            | Self::Store { .. }
            | Self::System { .. } => 1,
        };
        // A failure never becomes 0, whatever the conversion has to cut.
        u8::try_from(code).unwrap_or(u8::MAX).max(1)
    }
}

/// The rank that failed first, and how. Its message reads like
/// `rank 3 (pid 1234) was killed by SIGKILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// Its process id while it lived.
    pub pid: u32,
    /// How it ended.
    pub ending: Ending,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (pid {}) {}", self.rank, self.pid, self.ending)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Ending {
    /// Whether the process did its work: it exited with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", SignalName(*signal)),
        }
    }
}

/// Shows a signal by its name where it has one; real-time signals have none.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(ending: Ending) -> RankFailure {
        RankFailure { rank: 3, pid: 1234, ending }
    }

    #[test]
    fn a_failure_names_rank_pid_and_cause() {
        assert_eq!(failure(Ending::Signal(9)).to_string(), "rank 3 (pid 1234) was killed by SIGKILL");
        assert_eq!(failure(Ending::Signal(40)).to_string(), "rank 3 (pid 1234) was killed by signal 40");
        assert_eq!(failure(Ending::Code(7)).to_string(), "rank 3 (pid 1234) exited with code 7");
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(LaunchError::RankFailed(failure(Ending::Code(7))).exit_code(), 7);
        assert_eq!(LaunchError::RankFailed(failure(Ending::Signal(9))).exit_code(), 137);
        assert_eq!(LaunchError::Interrupted { signal: 15 }.exit_code(), 143);
        assert_eq!(LaunchError::ProgramNotFound { program: "x".into() }.exit_code(), 127);
        let denied = LaunchError::Spawn {
            rank: 0,
            program: "x".into(),
            source: io::ErrorKind::PermissionDenied.into(),
        };
        assert_eq!(denied.exit_code(), 126);
        assert_eq!(LaunchError::NoRanks.exit_code(), 1);
    }
}

//! The errors of a launch, and their exit codes.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::agents::{AgentError, Node};
use super::binding::BindingError;
use super::devices::DevicesError;

/// A process that was killed by signal `s` has the exit code `128 + s`.
const SIGNAL_BASE: i32 = 128;

/// The error of a launch in which not every rank exited with code 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The caller asked for zero ranks.
    #[error("a launch needs at least one rank")]
    NoRanks,
    /// A limit of this machine is lower than the number of ranks; none was started.
    #[error("cannot start {ranks} ranks: {limit} allows {most}; take fewer ranks or raise the limit")]
    TooManyRanks {
        /// The requested number of ranks.
        ranks: usize,
        /// The largest number of ranks that can be started.
        most: usize,
        /// The limit.
        limit: &'static str,
    },
    /// The caller set a variable that is reserved for the launcher.
    #[error("{0} is set by the launcher and cannot be overridden")]
    ReservedVariable(&'static str),
    /// Devices could not be assigned to the ranks; none was started.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// Ranks could not be bound to processors; none was started.
    #[error(transparent)]
    Binding(#[from] BindingError),
    /// The output of a rank cannot be written to a file; no rank is left running.
    #[error("cannot write the output of ranks to {}", path.display())]
    Log {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program does not exist; no rank is left running.
    #[error("program not found: {}", program.display())]
    ProgramNotFound {
        /// The program as the caller named it.
        program: OsString,
    },
    /// The program could not be started; no rank is left running.
    #[error("cannot start rank {rank} ({})", program.display())]
    Spawn {
        /// The first rank that could not be started.
        rank: usize,
        /// The program as the caller named it.
        program: OsString,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The launcher could not serve the store.
    #[error("cannot serve the store at {address}: {error}")]
    Store {
        /// The address; port 0 is any free port.
        address: SocketAddr,
        /// The error of the store.
        error: Box<comm::Error>,
    },
    /// The launchers of several hosts did not meet, or one of them is lost or was stopped.
    #[error(transparent)]
    Agents(#[from] AgentError),
    /// A rank failed, and the launcher terminated the others.
    #[error("{0}")]
    RankFailed(RankFailure),
    /// A signal stopped the launcher, which forwarded it to every rank.
    #[error("interrupted by {}", SignalName(*signal))]
    Interrupted {
        /// The first signal that arrived.
        signal: i32,
    },
    /// A system call for the supervision of ranks failed; no rank is left running.
    #[error("cannot {what}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Returns a function for `map_err` that adds the attempted operation to an error.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |source| LaunchError::System { what, source }
}

impl LaunchError {
    /// Returns the exit code for a shell: the failed rank's code, `128 + signal` if the rank was
    /// killed or the launch was interrupted, 127 if the program does not exist, or 126 if it cannot
    /// be executed.
    pub fn exit_code(&self) -> u8 {
        let code = match self {
            Self::RankFailed(RankFailure { exit: ProcessExit::Code(code), .. }) => *code,
            Self::RankFailed(RankFailure { exit: ProcessExit::Signal(signal), .. })
            | Self::Interrupted { signal }
            | Self::Agents(AgentError::Interrupted { signal, .. }) => SIGNAL_BASE + signal,
            Self::ProgramNotFound { .. } => 127,
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 126,
            Self::Spawn { .. }
            | Self::NoRanks
            | Self::TooManyRanks { .. }
            | Self::ReservedVariable(_)
            | Self::Devices(_)
            | Self::Agents(_)
            | Self::Binding(_)
            | Self::Log { .. }
            | Self::Store { .. }
            | Self::System { .. } => 1,
        };
        // Codes out of range must not become 0.
        u8::try_from(code).unwrap_or(u8::MAX).max(1)
    }
}

/// The failure of the rank that failed first, such as `rank 3 (pid 1234) was killed by SIGKILL`,
/// and the last lines that it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// Its process id.
    pub pid: u32,
    /// Its exit status.
    pub exit: ProcessExit,
    /// The host of the rank, if the launch has several.
    pub node: Option<Node>,
    /// The last lines of its standard error, if that was written to a file of this host.
    #[serde(skip)]
    pub last_lines: Vec<String>,
}

impl RankFailure {
    /// Formats the failure without the last lines.
    fn cause(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            write!(f, "rank {} (pid {}) ", self.rank, self.pid)?;
            self.node.iter().try_for_each(|node| write!(f, "on {node} "))?;
            write!(f, "{}", self.exit)
        })
    }

    fn fmt_last_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.last_lines.is_empty() {
            write!(f, "\nthe last lines of its standard error:")?;
        }
        self.last_lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause())?;
        self.fmt_last_lines(f)
    }
}

/// A restart of all ranks, such as `rank 3 (pid 1234) was killed by SIGKILL: restart 1 of 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restart {
    /// The failure before the restart.
    pub failure: RankFailure,
    /// The number of the restart, from 1.
    pub number: usize,
    /// The largest number of restarts.
    pub max: usize,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: restart {} of {}", self.failure.cause(), self.number, self.max)?;
        self.failure.fmt_last_lines(f)
    }
}

/// The exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProcessExit {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl ProcessExit {
    /// Returns whether the process exited with code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", SignalName(*signal)),
        }
    }
}

/// Formats a signal by its name, or its number for real-time signals.
pub(super) struct SignalName(pub(super) i32);

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

    fn failure(exit: ProcessExit) -> RankFailure {
        RankFailure { rank: 3, pid: 1234, exit, node: None, last_lines: Vec::new() }
    }

    #[test]
    fn a_failure_names_rank_pid_and_cause() {
        assert_eq!(failure(ProcessExit::Signal(9)).to_string(), "rank 3 (pid 1234) was killed by SIGKILL");
        assert_eq!(failure(ProcessExit::Signal(40)).to_string(), "rank 3 (pid 1234) was killed by signal 40");
        assert_eq!(failure(ProcessExit::Code(7)).to_string(), "rank 3 (pid 1234) exited with code 7");
    }

    #[test]
    fn a_failure_names_its_host_and_the_last_lines() {
        let mut failure = failure(ProcessExit::Code(7));
        failure.node = Some(Node { rank: 1, host: "b".to_owned() });
        failure.last_lines = vec!["one".to_owned(), "two".to_owned()];
        let lines = "\nthe last lines of its standard error:\n    one\n    two";
        assert_eq!(failure.to_string(), format!("rank 3 (pid 1234) on node 1 (b) exited with code 7{lines}"));
        let restart = Restart { failure, number: 1, max: 2 };
        let cause = "rank 3 (pid 1234) on node 1 (b) exited with code 7: restart 1 of 2";
        assert_eq!(restart.to_string(), format!("{cause}{lines}"));
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(LaunchError::RankFailed(failure(ProcessExit::Code(7))).exit_code(), 7);
        assert_eq!(LaunchError::RankFailed(failure(ProcessExit::Signal(9))).exit_code(), 137);
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

//! The errors of commands, and their exit codes.

use std::io;
use std::path::{Path, PathBuf};

use comm_cli::__private::plot::DrawError;
use comm_cli::launch::LaunchError;

/// The exit code for invalid arguments.
const USAGE: u8 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Usage(String),
    #[error(
        "--max: the {ranks} ranks of this host need {needed} bytes of memory for {size} bytes, and {available} are available"
    )]
    Memory { size: usize, ranks: usize, needed: usize, available: usize },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("{0}")]
    Communication(comm::Error),
    #[error("cannot gather the hosts of all ranks")]
    RankInfos { source: Box<comm::ObjectError> },
    #[error("{0} elements were wrong")]
    Wrong(u64),
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} contains no record of a rank{}", path.display(), list(skipped))]
    NoRecord { path: PathBuf, skipped: Vec<(String, String)> },
    #[error(
        "no rank {}; ranks with COMM_MONITOR=0, of other users, and in other network or PID namespaces are not seen",
        pid.map_or_else(|| "runs on this host".to_owned(), |pid| format!("belongs to process {pid}"))
    )]
    NoJob { pid: Option<u32> },
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// A schedule is invalid, which is a bug.
    #[error("cannot simulate {algorithm}")]
    Simulation { algorithm: &'static str, source: comm_sim::cost::SimulationError },
    #[error("{} must be solved before a job can run here", match .0 { 1 => "one problem".to_owned(), many => format!("{many} problems") })]
    Unfit(usize),
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
}

/// Formats the files that cannot be used, as in "; a.json: it is empty".
fn list(skipped: &[(String, String)]) -> String {
    skipped.iter().map(|(name, reason)| format!("; {name}: {reason}")).collect()
}

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// The error is not kept as a source, because its text already includes its cause.
impl From<comm::Error> for CliError {
    fn from(error: comm::Error) -> Self {
        Self::Communication(error)
    }
}

impl CliError {
    /// Returns a function for `map_err` that adds a path to an error.
    pub(crate) fn write(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn usage(reason: impl Into<String>) -> Self {
        Self::Usage(reason.into())
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Memory { .. } | Self::Communication(comm::Error::Invalid(_)) => USAGE,
            Self::Launch(error) => error.exit_code(),
            Self::Communication(_)
            | Self::RankInfos { .. }
            | Self::Wrong(_)
            | Self::Write { .. }
            | Self::Read { .. }
            | Self::NoRecord { .. }
            | Self::NoJob { .. }
            | Self::Unfit(_)
            | Self::Draw(_)
            | Self::Simulation { .. }
            | Self::System { .. } => 1,
        }
    }
}

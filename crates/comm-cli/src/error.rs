//! The errors of `commctl perf`, and their exit codes.

use std::io;
use std::path::PathBuf;

use comm_cli::__private::plot::DrawError;
use comm_cli::launch::LaunchError;

/// The exit code for invalid arguments.
const USAGE: u8 = 2;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
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
    #[error(transparent)]
    Draw(#[from] DrawError),
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
}

pub(crate) type Result<T, E = PerfError> = std::result::Result<T, E>;

/// Not a source: the text of such an error includes its cause.
impl From<comm::Error> for PerfError {
    fn from(error: comm::Error) -> Self {
        Self::Communication(error)
    }
}

impl PerfError {
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
            | Self::Draw(_)
            | Self::System { .. } => 1,
        }
    }
}

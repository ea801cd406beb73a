//! What can go wrong in a measurement, and which exit code says so.

use std::io;
use std::path::PathBuf;

use comm_cli::__private::plot::DrawError;
use comm_cli::launch::LaunchError;

/// What a shell expects of a command line that makes no sense.
const USAGE: u8 = 2;

/// Why a measurement was not made, or cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// The command line asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// The buffers of all ranks of this host do not fit into its memory.
    #[error(
        "--max: {size} bytes need {needed} bytes of memory for the {ranks} ranks of this host, of which {available} \
         are available"
    )]
    Memory { size: usize, ranks: usize, needed: usize, available: usize },
    /// The ranks could not be started, or one failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks could not meet, or a collective failed.
    #[error("{0}")]
    Communication(comm::Error),
    /// Results were not what the collective promises.
    #[error("{0} elements were wrong")]
    Wrong(u64),
    /// Standard output or a file could not be written.
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A picture could not be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The system would not say what it was asked.
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
}

/// The result of a part of a measurement.
pub(crate) type Result<T, E = PerfError> = std::result::Result<T, E>;

/// By hand, because such an error already says what caused it, and would say it twice as a source.
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
            | Self::Wrong(_)
            | Self::Write { .. }
            | Self::Draw(_)
            | Self::System { .. } => 1,
        }
    }
}

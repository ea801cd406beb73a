//! What can go wrong in a comparison.

use std::io;
use std::path::PathBuf;

use comm_cli::__private::plot::DrawError;

/// Why nothing was compared, or nothing written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    /// The command line asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// A file could be neither read nor written.
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A line of a journal is none of its kinds.
    #[error("{}:{line}", path.display())]
    Journal { path: PathBuf, line: usize, source: serde_json::Error },
    /// A record has no JSON.
    #[error("cannot write a record: {0}")]
    Record(serde_json::Error),
    /// A program could not be started or watched.
    #[error("{program}")]
    Start { program: String, source: io::Error },
    /// A program failed that nothing can be compared without.
    #[error("{program} failed: {reason}")]
    Failed { program: String, reason: String },
    /// There is not one measurement.
    #[error("nothing has been measured")]
    Nothing,
    /// A picture could not be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// Standard output is closed.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// The result of a part of a comparison.
pub(crate) type Result<T, E = CompareError> = std::result::Result<T, E>;

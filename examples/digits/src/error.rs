//! The errors of a run.

use std::path::PathBuf;

/// The result of this package's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks could not communicate.
    #[error(transparent)]
    Comm(#[from] comm::Error),
    /// Gradients could not be averaged.
    #[error(transparent)]
    DataParallel(#[from] comm::ddp::Error),
    /// There are too few images for a single step.
    #[error("{ranks} ranks x {batch_size} images per step are more than the {images} training images")]
    BatchTooLarge {
        /// The number of ranks.
        ranks: usize,
        /// Images per rank and step.
        batch_size: usize,
        /// The number of images.
        images: usize,
    },
    /// The result could not be printed.
    #[error("cannot print: {0}")]
    Print(std::io::Error),
    /// A file could not be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system or the drawing library.
        reason: String,
    },
    /// The parameters of the ranks differ.
    #[error("the replicas differ")]
    ReplicasDiffer,
}

impl Error {
    /// Returns whether other ranks failed, so that fewer may go on.
    #[must_use]
    pub fn is_failure_of_ranks(&self) -> bool {
        let cause = match self {
            Self::Comm(error) | Self::DataParallel(comm::ddp::Error::Comm(error)) => error.root_cause(),
            _ => return false,
        };
        matches!(
            cause,
            comm::Error::PeerLost { .. } | comm::Error::Timeout { .. } | comm::Error::Aborted { .. }
        )
    }
}

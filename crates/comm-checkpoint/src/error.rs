//! The error type of checkpoints.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comm_core::DType;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a checkpoint.
///
/// After every error except [`Error::Comm`] the communicator remains usable, and all earlier
/// checkpoints can still be loaded.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder of this rank could not be used.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// The operation, as in "write".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// Another rank failed, so nothing was saved or loaded on any rank.
    #[error("rank {rank} failed: {reason}")]
    Peer {
        /// The lowest rank that failed.
        rank: usize,
        /// The text of its error.
        reason: String,
    },
    /// A name was added to a [`State`](crate::State) twice, or is reserved.
    #[error("the name {name:?} is taken")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A buffer does not have the elements that its shape or range requires.
    #[error("{name:?} has {expected} elements here, but the buffer has {got}")]
    Length {
        /// The tensor.
        name: String,
        /// The number of elements of the shape, or from the start of the range to the end of the
        /// tensor.
        expected: usize,
        /// The number of elements in the buffer.
        got: usize,
    },
    /// Safetensors has no such element type.
    #[error("{name:?} has elements of {dtype}, which safetensors files cannot hold")]
    Unsupported {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// The ranks describe a tensor differently.
    #[error("{name:?} differs between ranks: rank {rank} has {theirs}, rank {reference} has {ours}")]
    Mismatch {
        /// The tensor.
        name: String,
        /// A rank that differs.
        rank: usize,
        /// Its description.
        theirs: String,
        /// The lowest rank that has the tensor.
        reference: usize,
        /// The description of that rank.
        ours: String,
    },
    /// The shards of a tensor do not cover each of its elements exactly once.
    #[error("{fault} {elements:?} of {name:?}")]
    Coverage {
        /// The tensor.
        name: String,
        /// The first elements that no rank has, or that several ranks have.
        elements: Range<usize>,
        /// Whether they are missing or duplicated.
        fault: Coverage,
    },
    /// The step has already been saved, and all its files are present.
    #[error("step {step} was saved before")]
    Exists {
        /// The step.
        step: u64,
    },
    /// There is no complete checkpoint of this step.
    #[error("there is no complete checkpoint of step {step}")]
    NoSuchStep {
        /// The step.
        step: u64,
    },
    /// The hosts have different checkpoints of this step, for example of different runs.
    #[error("the hosts have different checkpoints of step {step}")]
    Diverged {
        /// The step.
        step: u64,
    },
    /// The checkpoint has no tensor or value of this name.
    #[error("the checkpoint has no {name:?}")]
    Missing {
        /// The name.
        name: String,
    },
    /// The tensor in the checkpoint has another element type than the buffer.
    #[error("{name:?} has elements of {expected} in the checkpoint, but the buffer has {got}")]
    WrongType {
        /// The tensor.
        name: String,
        /// The type in the checkpoint.
        expected: DType,
        /// The type of the buffer.
        got: DType,
    },
    /// A value could not be converted to or from JSON.
    #[error("cannot convert the value {name:?}")]
    Value {
        /// The name of the value.
        name: String,
        /// The error of the conversion.
        source: Arc<serde_json::Error>,
    },
    /// A file of the checkpoint is damaged.
    #[error("{} is damaged: {reason}", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The thread that saves in the background ended without a result.
    #[error("the thread that saves checkpoints panicked")]
    Panicked,
    /// The communicator failed.
    #[error(transparent)]
    Comm(#[from] comm_core::Error),
}

/// The reason the shards of a tensor are inconsistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Coverage {
    /// No rank has the elements.
    Missing,
    /// Several ranks have the elements.
    Duplicate,
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "no rank has the elements",
            Self::Duplicate => "several ranks have the elements",
        })
    }
}

/// Prints the texts of the error and its causes, for programs whose `main` returns this error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.chain())
    }
}

impl Error {
    /// Returns a function that converts errors of the system in an operation on a path.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source: Arc::new(source) }
    }

    /// Returns the texts of the error and its causes, for other ranks.
    pub(crate) fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |&cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    pub(crate) fn corrupt(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.to_string() }
    }
}

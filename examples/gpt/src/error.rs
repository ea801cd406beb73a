//! The errors of a run.

use std::io;
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
    /// The state of the ranks differs.
    #[error(transparent)]
    Ranks(#[from] comm::ddp::Error),
    /// Parameters could not be updated, or the replicas differ.
    #[error(transparent)]
    Update(#[from] comm_candle::Error),
    /// A checkpoint could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] comm::checkpoint::Error),
    /// The model could not be computed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The text could not be decompressed.
    #[error("the text is damaged")]
    Text(#[source] io::Error),
    /// A step has another number of windows than the ranks can share.
    #[error("{batch} windows per step cannot be shared by {ranks} ranks equally")]
    Batch {
        /// The windows per step.
        batch: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// The text is too short for a step, or for validation.
    #[error(
        "the text has {training} windows for training and {validation} for validation, and a step needs {batch}"
    )]
    TextTooShort {
        /// The windows of a step.
        batch: usize,
        /// The windows of the training part.
        training: usize,
        /// The windows of the validation part.
        validation: usize,
    },
    /// Parameters got no gradient, or only zeros, in the first step.
    #[error("no gradient arrives at {}: an operation without backward?", names.join(", "))]
    Untrained {
        /// The parameters.
        names: Vec<String>,
    },
    /// The loss or the gradient is not a number.
    #[error("training diverged in step {step}")]
    Diverged {
        /// The step.
        step: u64,
    },
    /// The checkpoint is of a run with other settings.
    #[error("the checkpoint is of a run with other settings: {saved}")]
    OtherSettings {
        /// The settings of that run.
        saved: String,
    },
    /// The result could not be printed.
    #[error("cannot print")]
    Print(#[source] io::Error),
    /// A file could not be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system or the drawing library.
        reason: String,
    },
}

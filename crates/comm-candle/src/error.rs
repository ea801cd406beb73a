//! The error type of training candle models.

use candle_core::{DType, DeviceLocation, Tensor};
use comm_core::{Comm, Memory};

use crate::lost::list;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of training a model on several ranks.
///
/// [`Error::Ranks`], [`Error::Type`], [`Error::Place`], [`Error::NotUpdated`] and
/// [`Error::LostGradients`] occur on every rank. [`Error::Gradient`], [`Error::Integers`] and
/// [`Error::Changed`] occur on one rank, and the others return [`Error::Refused`] for it: no data
/// was sent, and all ranks may call again.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks do not train the same model, or communication failed.
    #[error(transparent)]
    Ranks(#[from] comm_ddp::Error),
    /// An operation of candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A checkpoint could not be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] comm_checkpoint::Error),
    /// A variable has an element type that cannot be communicated.
    #[error("variable {name:?} holds {}, which cannot be communicated", dtype.as_str())]
    Type {
        /// The variable.
        name: String,
        /// Its element type.
        dtype: DType,
    },
    /// A variable is not in the memory of the communicator.
    #[error("variable {name:?} is on {location:?}, but the communicator is for {place}")]
    Place {
        /// The variable.
        name: String,
        /// Its location.
        location: DeviceLocation,
        /// The memory of the communicator.
        place: &'static str,
    },
    /// A tensor that cannot be communicated: its elements are 8-bit floats, or it is not in host
    /// memory.
    #[error("a tensor of {form} cannot be communicated")]
    Tensor {
        /// The form of the tensor.
        form: Box<Form>,
    },
    /// A dimension cannot be divided into equal parts for all ranks.
    #[error("the {what} is {len}, which is not a multiple of {ranks}, the number of ranks")]
    Indivisible {
        /// The dimension.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A variable has an element type that the optimizer does not update: a 16-bit float, or
    /// another type than the first variable of a sharded optimizer.
    #[error("variable {name:?} holds {dtype}; an optimizer updates f32 or f64, a sharded one not both")]
    NotUpdated {
        /// The variable.
        name: String,
        /// Its element type.
        dtype: comm_core::DType,
    },
    /// A tensor in a checkpoint has another shape than its variable.
    #[error("{name:?} has shape {got:?} in the checkpoint, but the variable has {expected:?}")]
    Stored {
        /// The tensor.
        name: String,
        /// The shape of the variable.
        expected: Vec<usize>,
        /// The shape in the checkpoint.
        got: Vec<usize>,
    },
    /// Another rank cannot continue, so no rank does. If several cannot, this is the lowest one.
    #[error("rank {rank} cannot continue: {why}")]
    Refused {
        /// The rank that cannot.
        rank: usize,
        /// The variable.
        name: String,
        /// The error of that rank.
        why: String,
    },
    /// A gradient does not match its variable. Nothing was sent.
    #[error("the gradient of {name:?} is {got}, the variable is {expected}")]
    Gradient {
        /// The variable.
        name: String,
        /// The form of the variable.
        expected: Box<Form>,
        /// The form of the gradient.
        got: Box<Form>,
    },
    /// A variable of integers, which have no average, has a gradient. Nothing was sent.
    #[error("variable {name:?} holds integers, and has a gradient")]
    Integers {
        /// The variable.
        name: String,
    },
    /// No rank has a gradient for these variables, in the first step with
    /// [`LostGradients::Refuse`](crate::LostGradients::Refuse). All ranks get this error, and may
    /// call again.
    #[error(
        "no rank has a gradient for {} of {trained} variables: {}. Either the loss does not depend on them, or candle \
         lost their gradients in an operation without backward: layer_norm, rms_norm, softmax_last_dim, rope or sdpa of \
         candle-nn, or the layers LayerNorm and RmsNorm. Use the functions that end in _slow, softmax, or \
         RmsNorm::forward_diff; after an operation without backward, Tensor::track_op is false",
        names.len(), list(names)
    )]
    LostGradients {
        /// The variables.
        names: Vec<String>,
        /// The total number of floating point variables.
        trained: usize,
    },
    /// A variable was added, removed or replaced since the model was prepared. Nothing was sent.
    #[error("variable {name:?} was added, removed or replaced; prepare the model again")]
    Changed {
        /// The variable.
        name: String,
    },
}

/// Prints the `Display` text in one piece, for programs whose `main` returns this error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_string())
    }
}

impl Error {
    /// Returns whether communication failed in such a way that the communicator cannot be used any
    /// more, for example because a rank was lost. The ranks that remain may go on in another group:
    /// see [`ReplicatedOptimizer::rejoin`](crate::ReplicatedOptimizer::rejoin).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        let Self::Ranks(error) = self else { return false };
        matches!(error.root_cause(), comm_ddp::Error::Comm(error) if error.is_fatal())
    }

    /// Returns the variable that the error concerns, if there is one.
    pub(crate) fn variable(&self) -> Option<&str> {
        match self {
            Self::Type { name, .. }
            | Self::Place { name, .. }
            | Self::NotUpdated { name, .. }
            | Self::Stored { name, .. }
            | Self::Refused { name, .. }
            | Self::Gradient { name, .. }
            | Self::Integers { name }
            | Self::Changed { name } => Some(name),
            _ => None,
        }
    }
}

impl From<comm_core::Error> for Error {
    fn from(error: comm_core::Error) -> Self {
        Self::Ranks(error.into())
    }
}

/// For models whose functions return candle's errors. The original error is in the `wrapped` field.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => {
                let context = "an operation of several ranks failed".into();
                Self::WrappedContext { wrapped: Box::new(other), context }
            }
        }
    }
}

/// Aborts the communicator if only this rank failed, because other ranks wait for it.
pub(crate) fn or_abort<M: Memory, T>(comm: &Comm<M>, outcome: Result<T>) -> Result<T> {
    match &outcome {
        Err(Error::Candle(_)) => comm.abort("a tensor could not be read or written"),
        Err(changed @ Error::Changed { .. }) => comm.abort(&changed.to_string()),
        _ => {}
    }
    outcome
}

/// Shape, element type and location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Form {
    /// The length of every dimension.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
    /// The location of the elements.
    pub location: DeviceLocation,
}

impl Form {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.dims().to_vec(), dtype: tensor.dtype(), location: tensor.device().location() }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} on {:?}", self.shape, self.dtype.as_str(), self.location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_mismatched_gradient_reads_as_a_sentence() {
        let expected = Form { shape: vec![2, 3], dtype: DType::F32, location: DeviceLocation::Cpu };
        let got =
            Form { shape: vec![3, 2], dtype: DType::BF16, location: DeviceLocation::Cuda { gpu_id: 1 } };
        let error = Error::Gradient { name: "w".into(), expected: expected.into(), got: got.into() };
        let words = "the gradient of \"w\" is [3, 2] of bf16 on Cuda { gpu_id: 1 }, \
                     the variable is [2, 3] of f32 on Cpu";
        assert_eq!(error.to_string(), words);
    }
}

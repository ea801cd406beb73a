//! The error type of training burn modules.

use burn::tensor::{DType, TensorReadError};
use comm_core::Comm;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of training a module on several ranks.
///
/// [`Error::Ranks`] and [`Error::LostGradients`] occur on every rank. [`Error::Type`],
/// [`Error::Gradient`], [`Error::NotTrained`] and [`Error::Changed`] occur on one rank, and the
/// others return [`Error::Refused`] for it: no data was sent, and all ranks may call again.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks do not train the same module, or communication failed.
    #[error(transparent)]
    Ranks(#[from] comm_ddp::Error),
    /// A tensor could not be read. The communicator was aborted.
    #[error("the value of {name:?} could not be read")]
    Read {
        /// The parameter.
        name: String,
        /// The error of burn.
        source: TensorReadError,
    },
    /// A parameter has an element type that cannot be communicated.
    #[error("parameter {name:?} holds {}, which cannot be communicated", dtype.name())]
    Type {
        /// The parameter.
        name: String,
        /// Its element type.
        dtype: DType,
    },
    /// Another rank cannot continue, so no rank does. If several cannot, this is the lowest one.
    #[error("rank {rank} cannot continue: {why}")]
    Refused {
        /// The rank that cannot.
        rank: usize,
        /// The parameter.
        name: String,
        /// The error of that rank.
        why: String,
    },
    /// A gradient does not match its parameter. Nothing was sent.
    #[error("the gradient of {name:?} is {got}, the parameter is {expected}")]
    Gradient {
        /// The parameter.
        name: String,
        /// The form of the parameter.
        expected: Box<Form>,
        /// The form of the gradient.
        got: Box<Form>,
    },
    /// A parameter that required no gradient on any rank when the replicas were prepared has one.
    /// Nothing was sent.
    #[error(
        "{name:?} has a gradient, but required none on any rank when the replicas were prepared; \
         prepare them again after unfreezing"
    )]
    NotTrained {
        /// The parameter.
        name: String,
    },
    /// Parameters that require gradients have none on any rank in the first step, so that they
    /// would never be trained. Nothing was sent.
    #[error(
        "no rank has a gradient for {}; freeze what the loss does not depend on, or allow it with \
         `Options::allow_unused`",
        .names.join(", ")
    )]
    LostGradients {
        /// The parameters, sorted.
        names: Vec<String>,
    },
    /// A parameter was added, removed or replaced by one of another shape or type since the
    /// replicas were prepared. Nothing was sent.
    #[error("parameter {name:?} was added, removed or reshaped; prepare the replicas again")]
    Changed {
        /// The parameter.
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
    /// Returns the parameter that the error concerns, if there is one.
    pub(crate) fn parameter(&self) -> Option<&str> {
        match self {
            Self::Read { name, .. }
            | Self::Type { name, .. }
            | Self::Refused { name, .. }
            | Self::Gradient { name, .. }
            | Self::NotTrained { name }
            | Self::Changed { name }
            | Self::Ranks(comm_ddp::Error::DuplicateName { name }) => Some(name),
            Self::Ranks(_) | Self::LostGradients { .. } => None,
        }
    }

    pub(crate) fn read(name: &str, source: impl Into<TensorReadError>) -> Self {
        Self::Read { name: name.to_owned(), source: source.into() }
    }
}

impl From<comm_core::Error> for Error {
    fn from(error: comm_core::Error) -> Self {
        Self::Ranks(error.into())
    }
}

/// Aborts the communicator if a tensor could not be read while other ranks wait for this one.
pub(crate) fn or_abort<T>(comm: &Comm, outcome: Result<T>) -> Result<T> {
    if let Err(Error::Read { .. }) = &outcome {
        comm.abort("a tensor could not be read");
    }
    outcome
}

/// Shape and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Form {
    /// The length of every dimension.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
}

impl Form {
    pub(crate) fn new(shape: &[usize], dtype: DType) -> Self {
        Self { shape: shape.to_vec(), dtype }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.shape, self.dtype.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_sentences() {
        let expected = Form::new(&[2, 3], DType::F32).into();
        let got = Form::new(&[3, 2], DType::BF16).into();
        let error = Error::Gradient { name: "w".into(), expected, got };
        let text = "the gradient of \"w\" is [3, 2] of bf16, the parameter is [2, 3] of f32";
        assert_eq!(error.to_string(), text);
        let error = Error::LostGradients { names: vec!["a.bias".into(), "a.weight".into()] };
        assert!(error.to_string().starts_with("no rank has a gradient for a.bias, a.weight; freeze"));
    }
}

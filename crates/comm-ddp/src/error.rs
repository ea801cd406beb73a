//! What can go wrong.

use std::sync::Arc;

use comm_core::DType;

/// The result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why data-parallel training cannot go on.
///
/// [`Error::Comm`], [`Error::Mismatch`], [`Error::Abandoned`] and [`Error::Poisoned`] concern all ranks. The others are
/// this caller's mistakes: nothing was sent and nothing has changed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters have the same name.
    #[error("two parameters are named {name:?}")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// An index that no parameter has.
    #[error("there is no parameter {index}, only {count} were registered")]
    UnknownParameter {
        /// The index asked for.
        index: usize,
        /// How many parameters there are.
        count: usize,
    },
    /// Numbers that do not fit the parameter they are for.
    #[error("parameter {name:?} has {expected} elements, {got} were given")]
    Length {
        /// The parameter.
        name: String,
        /// The elements it has.
        expected: usize,
        /// The elements that were given.
        got: usize,
    },
    /// A parameter of another element type than the gradients.
    #[error("parameter {name:?} holds {got}, its gradient {expected}")]
    WrongType {
        /// The parameter.
        name: String,
        /// The type of the gradients.
        expected: DType,
        /// The type of the parameter.
        got: DType,
    },
    /// Too few or too many parameters were given.
    #[error("{expected} parameters were registered, {got} were given")]
    Count {
        /// How many there are.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A gradient that was written, or marked as ready, after it had been marked as ready in the same step.
    #[error("the gradient of {name:?} is already on its way in this step")]
    AlreadyReady {
        /// The parameter.
        name: String,
    },
    /// The ranks train different models.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// A step ended without `finish` after gradients had been sent.
    #[error("a step was abandoned after gradients of it had been sent")]
    Abandoned,
    /// The communicator failed.
    #[error(transparent)]
    Comm(#[from] comm_core::Error),
    /// An earlier step failed for good; nothing was done.
    #[error("gradients can no longer be averaged since an earlier error: {0}")]
    Poisoned(Arc<Error>),
}

/// The text that users read, for programs whose `main` returns this error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The error that came first, or this one.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned(first) => first.root_cause(),
            other => other,
        }
    }
}

/// The first parameter, by name, in which ranks differ. Every rank gets the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ranks train different models: parameter {name:?} {difference} on {}, unlike on rank {reference}", list(.ranks))]
#[non_exhaustive]
pub struct Mismatch {
    /// The name of the parameter.
    pub name: String,
    /// What is different.
    pub difference: Difference,
    /// The ranks on which it is.
    pub ranks: Vec<usize>,
    /// The lowest of the ranks that hold what most ranks hold.
    pub reference: usize,
}

/// How a parameter differs from what most ranks have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// It is not there.
    Missing,
    /// It is there, and not on the other ranks.
    Extra,
    /// It has another shape.
    Shape {
        /// The shape that most ranks have.
        expected: Vec<usize>,
        /// The shape it has.
        found: Vec<usize>,
    },
    /// It has another element type.
    DType {
        /// The type that most ranks have.
        expected: DType,
        /// The type it has.
        found: DType,
    },
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Extra => f.write_str("is one too many"),
            Self::Shape { expected, found } => write!(f, "has shape {found:?}, not {expected:?},"),
            Self::DType { expected, found } => write!(f, "holds {found}, not {expected},"),
        }
    }
}

fn list(ranks: &[usize]) -> String {
    let listed: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_reads_as_a_sentence() {
        let difference = Difference::Shape { expected: vec![128, 10], found: vec![128, 12] };
        let mismatch = Mismatch { name: "head.weight".into(), difference, ranks: vec![2], reference: 0 };
        let expected = "ranks train different models: parameter \"head.weight\" has shape [128, 12], \
                        not [128, 10], on rank 2, unlike on rank 0";
        assert_eq!(mismatch.to_string(), expected);
        let mismatch = Mismatch { difference: Difference::Missing, ranks: vec![1, 3], ..mismatch };
        assert!(mismatch.to_string().contains("is missing on ranks 1, 3, unlike"));
    }

    #[test]
    fn the_first_error_can_be_found_again() {
        let first = Error::Abandoned;
        let nested = Error::Poisoned(Arc::new(Error::Poisoned(Arc::new(first))));
        assert!(matches!(nested.root_cause(), Error::Abandoned));
    }
}

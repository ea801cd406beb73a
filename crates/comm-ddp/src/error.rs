//! The error type of data parallel training.

use std::sync::Arc;

use comm_core::DType;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of data parallel training.
///
/// [`Error::Comm`], [`Error::Mismatch`], [`Error::HookMismatch`], [`Error::Hook`],
/// [`Error::Disagreement`], [`Error::Setting`], [`Error::Refused`], [`Error::Exhausted`],
/// [`Error::GraphChanged`], [`Error::Diverged`], [`Error::StateLost`], [`Error::Abandoned`] and
/// [`Error::Poisoned`]
/// concern all ranks. The others are errors in the arguments of this rank: nothing was sent and
/// nothing has changed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two parameters have the same name.
    #[error("two parameters have the name {name:?}; names must be unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A parameter index is out of range.
    #[error("parameter index {index} is out of range: {count} parameters are registered")]
    UnknownParameter {
        /// The requested index.
        index: usize,
        /// The number of parameters.
        count: usize,
    },
    /// A parameter is frozen and has no gradient.
    #[error("parameter {name:?} is frozen and has no gradient")]
    Frozen {
        /// The parameter.
        name: String,
    },
    /// A slice has another length than the parameter.
    #[error("parameter {name:?} has {expected} elements, but {got} were passed")]
    Length {
        /// The parameter.
        name: String,
        /// The number of its elements.
        expected: usize,
        /// The length of the slice.
        got: usize,
    },
    /// A buffer has another element type than the parameter.
    #[error("parameter {name:?} has elements of type {expected}, but {got} was passed")]
    WrongType {
        /// The parameter.
        name: String,
        /// The type of its elements.
        expected: DType,
        /// The type of the buffer.
        got: DType,
    },
    /// The weight of a rank's gradients is negative or not finite.
    #[error("the weight of gradients must be finite and not negative, but is {weight}")]
    Weight {
        /// The weight.
        weight: f64,
    },
    /// Some ranks have no batch left. Every rank gets this error, and may continue with the next
    /// step.
    #[error("{} of {ranks} ranks had no batch in this step", .ranks - .active)]
    Exhausted {
        /// The number of ranks that had one.
        active: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A rank used other parameters than in its first step, under
    /// [`Options::static_graph`](crate::Options::static_graph). Every rank gets this error, and may
    /// continue with the next step.
    #[error("parameter {name:?} {} on {}, unlike in the first step, but the graph is static",
        if *.is_used { "was used" } else { "was not used" }, list(.ranks))]
    GraphChanged {
        /// The first such parameter, by name.
        name: String,
        /// True if it was used now but not in the first step, false if it was used only in the
        /// first step.
        is_used: bool,
        /// The ranks for which this is the first such parameter.
        ranks: Vec<usize>,
    },
    /// Too few or too many parameters were passed.
    #[error("{expected} parameters are registered, but {got} were passed")]
    Count {
        /// The number of registered parameters.
        expected: usize,
        /// The number of parameters passed.
        got: usize,
    },
    /// A gradient was written or marked as ready after it had been marked as ready in the same
    /// step.
    #[error("the gradient of {name:?} has already been marked as ready in this step")]
    AlreadyReady {
        /// The parameter.
        name: String,
    },
    /// The state of a sampler belongs to another data set.
    #[error("{consumed} samples were used, but the data set has {samples}")]
    Samples {
        /// The number of samples that were used.
        consumed: usize,
        /// The number of samples in the data set.
        samples: usize,
    },
    /// The replicas of a buffer or of settings differ: a rank computed something else, or its
    /// memory is damaged.
    #[error("{name:?} has other bits on {} than on most ranks", list(.ranks))]
    Diverged {
        /// The first buffer that differs.
        name: String,
        /// The ranks that differ from the majority.
        ranks: Vec<usize>,
    },
    /// The ranks train different models.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// The ranks that train locally do not have the same options or the same position in the run.
    #[error(transparent)]
    Disagreement(Box<crate::Disagreement>),
    /// An option of local training is out of range. All ranks have the same options, and get the
    /// same error.
    #[error("the setting {name} must be {requirement}")]
    Setting {
        /// The name of the option.
        name: &'static str,
        /// The values that are allowed.
        requirement: &'static str,
    },
    /// Other ranks cannot begin or continue to train, because of errors in their arguments.
    #[error("{} cannot take part, because of errors that they report", list(.ranks))]
    Refused {
        /// The ranks that cannot take part.
        ranks: Vec<usize>,
    },
    /// The state of former ranks is lost: neither they nor the ranks with the copies of their state
    /// are left. Every rank gets this error. The others still have the last complete state of their
    /// own, but training can continue only from a checkpoint, with
    /// [`ZeroOptimizer::new`](crate::ZeroOptimizer::new) and
    /// [`ZeroOptimizer::state`](crate::ZeroOptimizer::state).
    #[error("the state of the optimizer on the former {} is lost, and no rank has a copy: load a checkpoint", list(.ranks))]
    StateLost {
        /// The ranks in the group whose state the other ranks have.
        ranks: Vec<usize>,
    },
    /// This process has joined a running group, and has no state until
    /// [`ZeroOptimizer::rejoin`](crate::ZeroOptimizer::rejoin) has returned.
    #[error("this rank has no state yet: call `rejoin` first")]
    NotJoined,
    /// The next step of local training accesses the parameters, so it cannot be skipped.
    #[error("the next step sends or applies parameters and cannot be skipped")]
    SyncDue,
    /// A communication hook was already registered, and remains.
    #[error("the communication hook {registered:?} is registered; {refused:?} was refused")]
    HookRegistered {
        /// The hook that remains.
        registered: String,
        /// The hook that was refused.
        refused: String,
    },
    /// The ranks registered different communication hooks. Every rank gets this error, and none has
    /// a hook.
    #[error(
        "the communication hook is {found:?} on {}, unlike {expected:?} on rank {reference}", list(.ranks)
    )]
    HookMismatch {
        /// The description of the hook that most ranks have.
        expected: String,
        /// The description of the hook of the first rank that differs.
        found: String,
        /// The ranks that differ from the majority.
        ranks: Vec<usize>,
        /// The lowest rank of the majority.
        reference: usize,
    },
    /// The communication hook of this rank failed.
    #[error("the communication hook {hook:?} failed in bucket {bucket}")]
    Hook {
        /// The description of the hook.
        hook: String,
        /// The position of the bucket.
        bucket: usize,
        /// The error of the hook.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A step ended without `finish` after gradients had been sent.
    #[error("a step was dropped without `finish` after some of its gradients had been sent")]
    Abandoned,
    /// The communicator failed.
    #[error(transparent)]
    Comm(#[from] comm_core::Error),
    /// An earlier step failed with a fatal error; this call did nothing.
    #[error("gradients can no longer be averaged after an earlier error: {0}")]
    Poisoned(Arc<Error>),
}

/// Prints the `Display` text in one piece, for programs whose `main` returns this error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_string())
    }
}

impl Error {
    /// Returns the first error of [`Error::Poisoned`], and every other error itself.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Poisoned(first) => first.root_cause(),
            other => other,
        }
    }
}

/// The first parameter, by name, that differs between ranks. Every rank gets the same value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ranks train different models: parameter {name:?} {difference} on {}, unlike on rank {reference}", list(.ranks))]
#[non_exhaustive]
pub struct Mismatch {
    /// The name of the parameter.
    pub name: String,
    /// The difference.
    pub difference: Difference,
    /// The ranks that differ from the majority.
    pub ranks: Vec<usize>,
    /// The lowest rank of the majority.
    pub reference: usize,
}

/// The difference between a parameter and its value on most ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// It is missing.
    Missing,
    /// It exists, but not on most ranks.
    Extra,
    /// It has another shape.
    Shape {
        /// The shape that most ranks have.
        expected: Vec<usize>,
        /// The shape it has.
        found: Vec<usize>,
    },
    /// It is frozen.
    Frozen,
    /// It is trained, but frozen on most ranks.
    Trained,
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
            Self::Extra => f.write_str("exists"),
            Self::Frozen => f.write_str("is frozen"),
            Self::Trained => f.write_str("is trained"),
            Self::Shape { expected, found } => write!(f, "has shape {found:?}, not {expected:?},"),
            Self::DType { expected, found } => write!(f, "holds {found}, not {expected},"),
        }
    }
}

pub(crate) fn list(ranks: &[usize]) -> String {
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

//! The error of a case that does not pass.

use std::fmt::{Debug, Display};

use comm_core::{Element, Error};
use comm_sim::communicator_conformance::{self, Failure};

/// The reason why a case did not pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A call that must succeed has failed.
    #[error(transparent)]
    Call(#[from] Error),
    /// A result is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The case cannot run on this machine.
    #[error("{0}")]
    NotRun(String),
}

/// The result of a case or of a part of it.
pub type Outcome<T = ()> = Result<T, CaseError>;

impl From<Failure> for CaseError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Call(error) => Self::Call(error),
            other => Self::Wrong(other.to_string()),
        }
    }
}

impl From<comm_ddp::Error> for CaseError {
    fn from(error: comm_ddp::Error) -> Self {
        match error {
            comm_ddp::Error::Comm(error) => Self::Call(error),
            other => Self::Wrong(other.to_string()),
        }
    }
}

impl CaseError {
    /// Adds the attempted operation to the message.
    fn during(self, what: impl Display) -> Self {
        match self {
            Self::NotRun(why) => Self::NotRun(why),
            error => Self::Wrong(format!("{what}: {error}")),
        }
    }
}

/// Adds the attempted operation to an error.
pub(crate) trait During<T> {
    fn during(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Into<CaseError>> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| error.into().during(what))
    }
}

/// Returns an error unless the condition holds.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(CaseError::Wrong(otherwise())) }
}

/// Returns an error unless both are equal.
pub(crate) fn equal<T: PartialEq + Debug>(what: impl Display, got: T, wanted: T) -> Outcome {
    let same = got == wanted;
    ensure(same, || format!("{what}: {got:?} instead of {wanted:?}"))
}

/// Returns an error with the first element that differs in any bit.
pub(crate) fn same_bits<T: Element + Debug>(what: impl Display, got: &[T], wanted: &[T]) -> Outcome {
    Ok(communicator_conformance::same_bits(what, got, wanted)?)
}

/// Returns the error of a call that must fail.
pub(crate) fn refused<T>(what: impl Display, outcome: Result<T, Error>) -> Outcome<Error> {
    match outcome {
        Err(error) => Ok(error),
        Ok(_) => Err(CaseError::Wrong(format!("{what}: succeeded, but must fail"))),
    }
}

/// Maps a call that an older library lacks to [`CaseError::NotRun`].
pub(crate) fn unless_unavailable<T>(outcome: Result<T, Error>) -> Outcome<T> {
    outcome.map_err(|error| match error {
        Error::BackendUnavailable { .. } => CaseError::NotRun(error.to_string()),
        error => CaseError::Call(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_operation_and_not_run_is_kept() {
        let wrong: Outcome = Err(CaseError::Wrong("no".into()));
        assert_eq!(wrong.during("a sum").unwrap_err().to_string(), "a sum: no");
        let not_run: Outcome = Err(CaseError::NotRun("too old".into()));
        assert!(matches!(not_run.during("a sum"), Err(CaseError::NotRun(why)) if why == "too old"));
        assert!(refused("it", Ok(1)).is_err());
    }
}

//! How a case ends that does not pass.

use std::fmt::{Debug, Display};

use comm_core::{Element, Error};

/// Why a case did not pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// A call failed that was to succeed.
    #[error(transparent)]
    Call(#[from] Error),
    /// Something else came out than was to.
    #[error("{0}")]
    Wrong(String),
    /// It cannot be run here, for this reason.
    #[error("{0}")]
    NotRun(String),
}

/// How a case ends, or a part of it.
pub type Outcome<T = ()> = Result<T, Trouble>;

impl Trouble {
    /// The same, and what was tried.
    fn during(self, what: impl Display) -> Self {
        match self {
            Self::NotRun(why) => Self::NotRun(why),
            trouble => Self::Wrong(format!("{what}: {trouble}")),
        }
    }
}

/// Says what was tried when something failed.
pub(crate) trait During<T> {
    fn during(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Into<Trouble>> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| error.into().during(what))
    }
}

/// Fails unless something holds.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Wrong(otherwise())) }
}

/// Fails unless both are equal.
pub(crate) fn equal<T: PartialEq + Debug>(what: impl Display, got: T, wanted: T) -> Outcome {
    let same = got == wanted;
    ensure(same, || format!("{what}: {got:?} instead of {wanted:?}"))
}

/// Fails unless both have the same bits, and names the first element that has not.
pub(crate) fn same_bits<T: Element>(what: impl Display, got: &[T], wanted: &[T]) -> Outcome {
    equal(format_args!("{what}: elements"), got.len(), wanted.len())?;
    let differs = |(a, b): (&T, &T)| bytemuck::bytes_of(a) != bytemuck::bytes_of(b);
    match got.iter().zip(wanted).position(differs) {
        None => Ok(()),
        Some(at) => equal(format_args!("{what}: element {at} of {}", got.len()), &got[at], &wanted[at])
            .and_then(|()| Err(Trouble::Wrong(format!("{what}: element {at} has other bits")))),
    }
}

/// The error of what was to fail.
pub(crate) fn refused<T>(what: impl Display, outcome: Result<T, Error>) -> Outcome<Error> {
    match outcome {
        Err(error) => Ok(error),
        Ok(_) => Err(Trouble::Wrong(format!("{what}: succeeded, and was to fail"))),
    }
}

/// What an older library lacks is not run; all else that fails, fails.
pub(crate) fn unless_unavailable<T>(outcome: Result<T, Error>) -> Outcome<T> {
    outcome.map_err(|error| match error {
        Error::BackendUnavailable { .. } => Trouble::NotRun(error.to_string()),
        error => Trouble::Call(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_the_first_difference_is_named() {
        assert!(same_bits("sum", &[1.0_f32, 2.0], &[1.0, 2.0]).is_ok());
        let words = |got: &[f32], wanted: &[f32]| same_bits("sum", got, wanted).unwrap_err().to_string();
        assert_eq!(words(&[1.0, 3.0], &[1.0, 2.0]), "sum: element 1 of 2: 3.0 instead of 2.0");
        assert_eq!(words(&[-0.0], &[0.0]), "sum: element 0 has other bits");
        assert_eq!(words(&[1.0], &[]), "sum: elements: 1 instead of 0");
    }

    #[test]
    fn what_was_tried_is_told_and_a_case_that_cannot_run_stays_one() {
        let wrong: Outcome = Err(Trouble::Wrong("no".into()));
        assert_eq!(wrong.during("a sum").unwrap_err().to_string(), "a sum: no");
        let not_run: Outcome = Err(Trouble::NotRun("too old".into()));
        assert!(matches!(not_run.during("a sum"), Err(Trouble::NotRun(why)) if why == "too old"));
        assert!(refused("it", Ok(1)).is_err());
    }
}

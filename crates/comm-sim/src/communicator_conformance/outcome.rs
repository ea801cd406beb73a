//! The result of a check.

use std::fmt::{Debug, Display};

use comm_core::{Element, Error, HostView};

/// The reason why a check did not pass.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// A call that must succeed failed.
    Call(Error),
    /// A result is wrong.
    Wrong(String),
}

/// The result of a check.
pub type CheckResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// Adds the attempted operation to the message.
    #[must_use]
    pub fn during(self, what: impl Display) -> Self {
        Self::Wrong(format!("{what}: {self}"))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(error) => Display::fmt(error, f),
            Self::Wrong(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

/// Returns an error unless the condition holds.
pub(super) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(Failure::Wrong(otherwise())) }
}

/// Compares elements bit by bit.
///
/// # Errors
/// [`Failure::Wrong`], which names the first element that differs.
pub fn same_bits<T: Element + Debug>(what: impl Display, got: &[T], wanted: &[T]) -> CheckResult {
    let (got_len, wanted_len) = (got.len(), wanted.len());
    ensure(got_len == wanted_len, || format!("{what}: {got_len} elements instead of {wanted_len}"))?;
    let width = T::DTYPE.size();
    let bytes = |elements| HostView::new(elements).bytes().chunks_exact(width);
    match bytes(got).zip(bytes(wanted)).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let (got, wanted) = (&got[at], &wanted[at]);
            Err(Failure::Wrong(format!("{what}: element {at} of {got_len}: {got:?} instead of {wanted:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_the_first_difference_is_named() {
        assert!(same_bits("sum", &[1.0_f32, 2.0], &[1.0, 2.0]).is_ok());
        let words = |got: &[f32], wanted: &[f32]| same_bits("sum", got, wanted).unwrap_err().to_string();
        assert_eq!(words(&[1.0, 3.0], &[1.0, 2.0]), "sum: element 1 of 2: 3.0 instead of 2.0");
        assert_eq!(words(&[-0.0], &[0.0]), "sum: element 0 of 1: -0.0 instead of 0.0");
        assert_eq!(words(&[1.0], &[]), "sum: 1 elements instead of 0");
    }
}

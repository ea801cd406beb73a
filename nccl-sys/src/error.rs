//! Why no library was loaded.

use std::fmt;
use std::path::PathBuf;

use crate::{Origin, Version, ncclResult_t};

/// No library was loaded. Names every path that was tried, and says why it would not do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot load NCCL{}", list(.attempts))]
#[non_exhaustive]
pub struct LoadError {
    /// What was tried, in order. There is at least one.
    pub attempts: Vec<Attempt>,
}

/// A library that was tried.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} ({origin}): {refusal}", path.display())]
#[non_exhaustive]
pub struct Attempt {
    /// What the system's loader was asked for.
    pub path: PathBuf,
    /// Who said so.
    pub origin: Origin,
    /// Why it would not do.
    pub refusal: Refusal,
}

/// Why a library would not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The system's loader did not load it.
    #[error("{words}")]
    Loader {
        /// What the loader said.
        words: String,
    },
    /// It was loaded, and is not NCCL.
    #[error("{} is not NCCL: it has no {symbol}", path.display())]
    NotNccl {
        /// Where the library lies that was loaded.
        path: PathBuf,
        /// What every NCCL has.
        symbol: &'static str,
    },
    /// It does not say which version it is.
    #[error("{} does not tell its version: ncclGetVersion returned {}", path.display(), .result.0)]
    NoVersion {
        /// Where the library lies that was loaded.
        path: PathBuf,
        /// What it answered.
        result: ncclResult_t,
    },
    /// It is older than the oldest version that is accepted.
    #[error("{} is NCCL {found}, and {} or later is needed", path.display(), Version::FLOOR)]
    TooOld {
        /// Where the library lies that was loaded.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
}

/// Every attempt on a line of its own, as what the loader says is long.
fn list(attempts: &[Attempt]) -> impl fmt::Display {
    fmt::from_fn(move |f| attempts.iter().try_for_each(|attempt| write!(f, "\n  {attempt}")))
}

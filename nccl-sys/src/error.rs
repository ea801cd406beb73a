//! The errors of loading NCCL.

use std::fmt;
use std::path::PathBuf;

use crate::{Origin, Version, ncclResult_t};

/// The error if no library was loaded, with every attempted path and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot load NCCL{}", list(.attempts))]
#[non_exhaustive]
pub struct LoadError {
    /// The attempts in order; at least one.
    pub attempts: Vec<Attempt>,
}

/// An attempt to load a library.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} ({origin}): {refusal}", path.display())]
#[non_exhaustive]
pub struct Attempt {
    /// The path that was passed to the loader.
    pub path: PathBuf,
    /// The source of the path.
    pub origin: Origin,
    /// The reason why it was rejected.
    pub refusal: Refusal,
}

/// The reason why a library was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The system's loader failed.
    #[error("{message}")]
    Loader {
        /// The message of the loader.
        message: String,
    },
    /// The library is not NCCL.
    #[error("{} is not NCCL: it has no {symbol}", path.display())]
    NotNccl {
        /// The path of the loaded library.
        path: PathBuf,
        /// The missing symbol, which every NCCL has.
        symbol: &'static str,
    },
    /// The library does not report its version.
    #[error("{} does not report its version: ncclGetVersion returned {}", path.display(), .result.0)]
    NoVersion {
        /// The path of the loaded library.
        path: PathBuf,
        /// The result of `ncclGetVersion`.
        result: ncclResult_t,
    },
    /// The library is older than the oldest supported version.
    #[error("{} is NCCL {found}, and {} or later is needed", path.display(), Version::FLOOR)]
    TooOld {
        /// The path of the loaded library.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
}

/// Formats every attempt on its own line, because messages of the loader are long.
fn list(attempts: &[Attempt]) -> impl fmt::Display {
    fmt::from_fn(move |f| attempts.iter().try_for_each(|attempt| write!(f, "\n  {attempt}")))
}

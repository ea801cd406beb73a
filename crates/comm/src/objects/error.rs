//! Errors of collectives of objects.

use std::sync::Arc;

/// An error of serde.
pub(super) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// The error of a collective of objects.
///
/// Only [`ObjectError::Comm`] can be fatal to the communicator: see [`ObjectError::is_fatal`].
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] comm_core::Error),
    /// An object of this rank cannot be encoded.
    #[error("an object of this rank cannot be encoded: {source}")]
    Encode {
        /// The error of its `Serialize`.
        r#source: Source,
    },
    /// This rank is the root and passed the wrong number of objects.
    #[error("the root passed {got} objects, but {expected} are needed: one for each rank")]
    Count {
        /// The number of objects needed.
        expected: usize,
        /// The number of objects passed.
        got: usize,
    },
    /// Another rank could not send its objects, so no rank received any.
    #[error("rank {rank} {failure}")]
    Peer {
        /// The lowest rank that failed.
        rank: usize,
        /// Its failure.
        failure: ObjectFailure,
    },
    /// The objects of a call are larger than the limit.
    #[error(
        "the objects have {bytes} bytes in total, and the largest is that of rank {rank}; the limit is {limit} bytes \
         (with_object_limit)"
    )]
    TooLarge {
        /// The rank of the largest object.
        rank: usize,
        /// The total size of all encoded objects.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// An object cannot be decoded as the type that this rank expects.
    #[error("an object of rank {rank} cannot be decoded: {source}")]
    Decode {
        /// The rank that sent it.
        rank: usize,
        /// The error of its `Deserialize`.
        r#source: Source,
    },
}

/// Prints the `Display` text in one piece, for programs whose `main` returns this error.
impl std::fmt::Debug for ObjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_string())
    }
}

/// The failure of another rank in a collective of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectFailure {
    /// It could not encode an object.
    #[error("could not encode an object")]
    Encode,
    /// It is the root and passed the wrong number of objects.
    #[error("passed the wrong number of objects as root")]
    Count,
}

impl ObjectError {
    /// Returns whether the communicator can no longer be used.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Comm(error) if error.is_fatal())
    }
}

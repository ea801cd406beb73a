//! What can go wrong with objects, and on whose side.

use std::sync::Arc;

/// An error of the encoding.
pub(super) type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Why a collective of objects failed.
///
/// Only [`ObjectError::Comm`] can be fatal to the communicator; [`ObjectError::is_fatal`] tells.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] comm_core::Error),
    /// An object that this rank gave cannot be encoded.
    #[error("an object of this rank cannot be encoded: {source}")]
    Encode {
        /// What its `Serialize` said.
        r#source: Source,
    },
    /// This rank, the root, did not give as many objects as it must.
    #[error("the root gave {got} objects, {expected} are needed")]
    Count {
        /// How many it must give.
        expected: usize,
        /// How many it gave.
        got: usize,
    },
    /// Another rank gave no objects that could be sent, and so nobody got any.
    #[error("rank {rank} {failure}")]
    Peer {
        /// That rank; the first of them if there are several.
        rank: usize,
        /// What went wrong there.
        failure: ObjectFailure,
    },
    /// The objects of a call are larger than the limit.
    #[error("the objects have {bytes} bytes together, most of them from rank {rank}; the limit is {limit}")]
    TooLarge {
        /// The rank that gave the largest object.
        rank: usize,
        /// The size of all objects together, once encoded.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// An object from another rank, or this one, is none of the type that is expected here.
    #[error("an object of rank {rank} cannot be decoded: {source}")]
    Decode {
        /// The rank that sent it.
        rank: usize,
        /// What its `Deserialize` said.
        r#source: Source,
    },
}

/// The text that users read, for programs whose `main` returns this error.
impl std::fmt::Debug for ObjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What went wrong with the objects of another rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectFailure {
    /// It could not encode an object.
    #[error("could not encode an object")]
    Encode,
    /// It did not give as many objects as a root must.
    #[error("did not give as many objects as are needed")]
    Count,
}

impl ObjectError {
    /// Whether the communicator can no longer be used.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Comm(error) if error.is_fatal())
    }
}

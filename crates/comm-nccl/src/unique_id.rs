//! What makes ranks one group.

use comm_core::{Invalid, Result};

use crate::Library;
use crate::handle;

/// The 128 bytes through which the ranks of a group find each other: one rank makes them, and all are given the same.
///
/// They hold an address at which the first rank listens, so that an id is good for one group and one run. Whoever knows it
/// may join in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::BYTES],
}

impl UniqueId {
    /// How long one is.
    pub const BYTES: usize = 128;

    /// An id that no other group has. Its maker must be a rank of the group, as it listens.
    ///
    /// # Errors
    /// [`Error::Backend`](comm_core::Error::Backend) with NCCL's code, for example if no network interface will do.
    pub fn generate(library: &Library) -> Result<Self> {
        handle::unique_id(library.nccl())
    }

    pub(crate) const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self { bytes }
    }

    /// The id that came from somewhere as bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`](comm_core::Error::Invalid) unless there are 128 of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refused = || Invalid::Length { what: "the unique id", expected: Self::BYTES, got: bytes.len() };
        Ok(Self { bytes: bytes.try_into().map_err(|_| refused())? })
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.bytes
    }
}

/// It is not shown: whoever knows it may join the group.
impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}

//! The time at which a sender may reuse its memory.

use std::io;
use std::sync::Arc;

use comm_core::Loss;

/// The time at which bytes that were accepted from a sender count as released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// Immediately, as in a transport that copies.
    OnAccept,
    /// When the receiver has consumed them, as in a transport whose receivers read the sender's
    /// memory. Revocation affects all bytes that are not consumed, and breaks their streams.
    OnConsume,
}

/// Returns the loss of a stream whose bytes were revoked.
pub(crate) fn revocation() -> Loss {
    let reason = io::Error::new(io::ErrorKind::ConnectionAborted, "the sender revoked its memory");
    Loss::Io(Arc::new(reason))
}

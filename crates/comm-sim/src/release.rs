//! When a sender has its bytes back.

use std::io;
use std::sync::Arc;

use comm_core::Loss;

/// When bytes that were accepted from a sender count as released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// At once, as in a transport that copies.
    OnAccept,
    /// When the receiver has consumed them, as in a transport that lends the sender's memory. A revocation takes back
    /// all that is not consumed, and breaks the streams concerned.
    OnConsume,
}

/// How a stream ends from which bytes were taken back.
pub(crate) fn revocation() -> Loss {
    let reason = io::Error::new(io::ErrorKind::ConnectionAborted, "the sender took its memory back");
    Loss::Io(Arc::new(reason))
}

//! TLS 1.3 for the connections of this crate, with the feature `tls`.
//!
//! A connection in TLS begins with the TLS handshake, and everything else of this crate is sent
//! inside: the messages of [`Handshake`](crate::handshake::Handshake), and then the bytes of the
//! store or the channel without frames, because TLS encrypts and authenticates its records.
//!
//! Without the feature, [`Tls`] and [`TlsSession`] have no values, and the compiler removes all
//! code that handles them.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod settings;
#[cfg(test)]
#[cfg(feature = "tls")]
mod tests;

#[cfg(not(feature = "tls"))]
pub(crate) use self::absent::{NoTls as Tls, NoTlsSession as TlsSession};
#[cfg(feature = "tls")]
pub(crate) use self::session::TlsSession;
#[cfg(feature = "tls")]
pub(crate) use self::settings::unauthenticated;
#[cfg(feature = "tls")]
pub use self::settings::{Tls, TlsFiles};

/// The first byte of a connection in TLS: the type of a record with a message of the handshake.
pub(crate) const FIRST_BYTE: u8 = 0x16;
/// The first byte of a record in which a side says why it ends a TLS handshake.
pub(crate) const ALERT: u8 = 0x15;
/// The length of the value that identifies a connection in TLS (`tls-exporter`, RFC 9266).
pub(crate) const BINDING_BYTES: usize = 32;

/// The progress of a TLS handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no TLS"))]
pub(crate) enum Negotiation {
    /// The socket must become readable, or writable if [`TlsSession::holds_bytes`].
    Pending,
    /// The handshake is complete. Bytes of it may still wait to be sent. The value identifies the
    /// connection: it is equal on both sides only if there is nobody between them.
    Done([u8; BINDING_BYTES]),
    /// The handshake failed, for this reason.
    Failed(String),
}

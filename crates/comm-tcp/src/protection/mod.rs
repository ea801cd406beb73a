//! Checks that the bytes of a connection arrive as they were sent.
//!
//! Without a secret and without checksums, a connection carries the bytes alone, and nothing here
//! is used. With checksums, each direction is a sequence of frames with CRC32C, which detects
//! accidents. With a secret, frames have message authentication codes instead, whose keys follow
//! from the secret and the handshake, so that nobody without the secret can alter, drop, repeat,
//! reorder or reflect bytes unnoticed. In TLS there are no frames, because TLS does the same with
//! its records.
//!
//! The code is AES-256-GMAC: it is a standard, it can be computed over pieces, and with
//! instructions for AES and carry-less products it takes less than half of the time of a hash
//! function with a key. Each connection has a key per direction, and each check another nonce.

mod check;
mod gmac;
mod receiver;
mod sender;
mod stream;
#[cfg(test)]
mod tests;

use socket2::Socket;

pub(crate) use self::check::{FrameBytes, FrameCheck, HEAD_BYTES_MAX, PartialCheck};
use self::gmac::GmacKey;
pub(crate) use self::gmac::KEY_BYTES;
pub(crate) use self::receiver::{ProtectedReceiver, Read, RecvError};
pub(crate) use self::sender::{PIECES_MAX, ProtectedSender, cut};
pub(crate) use self::stream::ByteStream;
use crate::hello::Role;
use crate::secret::Secret;
use crate::tls::{Tls, TlsSession};

/// The maximum number of bytes of a frame's payload on a channel. It is a little more than a power
/// of two, so that a message of that size is sent with its header.
const PAYLOAD_BYTES_MAX: usize = (64 << 10) + 64;

/// The protection that this side requires of connections.
#[derive(Debug, Clone)]
pub(crate) struct ProtectionConfig {
    pub(crate) secret: Option<Secret>,
    /// Whether frames have checksums if there is no secret. One side that requires them suffices.
    pub(crate) checksums: bool,
    /// Refuses connections without TLS.
    pub(crate) tls: Option<Tls>,
}

impl ProtectionConfig {
    /// Requires nothing.
    pub(crate) const NONE: Self = Self { secret: None, checksums: false, tls: None };

    /// Returns an error if anyone could be the other side of a connection in TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn check(&self) -> comm_core::Result<()> {
        match &self.tls {
            Some(tls) if self.secret.is_none() && !tls.has_certificates() => {
                Err(crate::tls::unauthenticated())
            }
            _ => Ok(()),
        }
    }

    /// Without TLS, everything is allowed.
    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unnecessary_wraps, reason = "as with TLS")]
    pub(crate) const fn check(&self) -> comm_core::Result<()> {
        Ok(())
    }

    /// Whether only processes that were given a secret or a certificate can connect.
    pub(crate) fn authenticates(&self) -> bool {
        self.secret.is_some() || self.tls.as_ref().is_some_and(Tls::has_certificates)
    }
}

/// The checks of the two directions of a connection.
#[derive(Debug)]
pub(crate) struct Protection {
    pub(crate) sending: FrameCheck,
    pub(crate) receiving: FrameCheck,
}

impl Protection {
    pub(crate) const fn checksums() -> Self {
        Self { sending: FrameCheck::crc32c(), receiving: FrameCheck::crc32c() }
    }

    /// Returns the checks of the side with this role, after the messages of a handshake.
    pub(crate) fn authenticated(secret: &Secret, role: Role, messages: &[u8]) -> Self {
        let check =
            |sender: Role| FrameCheck::gmac(GmacKey::new(&secret.derive_key(sender.key_label(), messages)));
        Self { sending: check(role), receiving: check(role.other()) }
    }
}

/// A socket whose handshake is complete.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) socket: Socket,
    /// The checks of frames. `None` in TLS, and if the bytes are sent as they are.
    pub(crate) protection: Option<Protection>,
    pub(crate) tls: Option<Box<TlsSession>>,
}

impl Established {
    /// The check of the frames that this side sends.
    pub(crate) fn sending(&mut self) -> Option<&mut FrameCheck> {
        self.protection.as_mut().map(|protection| &mut protection.sending)
    }

    /// The bytes, and the check of the frames that this side receives.
    pub(crate) fn receiving(&mut self) -> (ByteStream<'_>, Option<&mut FrameCheck>) {
        let check = self.protection.as_mut().map(|protection| &mut protection.receiving);
        (ByteStream::new(&self.socket, self.tls.as_deref_mut()), check)
    }

    pub(crate) fn stream(&mut self) -> ByteStream<'_> {
        ByteStream::new(&self.socket, self.tls.as_deref_mut())
    }

    /// Whether bytes that have left the socket wait to be received.
    pub(crate) fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_ready())
    }
}

impl From<Socket> for Established {
    fn from(socket: Socket) -> Self {
        Self { socket, protection: None, tls: None }
    }
}

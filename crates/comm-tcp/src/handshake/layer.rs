//! The layer below the messages of a handshake: the socket, or TLS.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::hello::Role;
use crate::protection::{ByteStream, Read};
use crate::tls::{self, BINDING_BYTES, Negotiation, Tls, TlsSession};

/// The most bytes that are discarded when a connection without TLS is refused, or vice versa.
const DISCARDED_BYTES_MAX: usize = 4096;
/// The most reads of a connection in TLS that broke, for the reason that the other side has sent.
const READS_AFTER_FAILURE_MAX: usize = 8;

/// The layer below the messages.
#[derive(Debug)]
pub(super) enum HandshakeLayer {
    /// The messages are sent as they are.
    Clear,
    /// The first byte from the dialer shows whether it uses TLS, as this side requires. Until then,
    /// the connection costs no memory for TLS.
    Undecided,
    /// The messages are sent in TLS, once its handshake is complete.
    Tls { session: Box<TlsSession>, is_open: bool },
}

/// The progress of opening a layer.
pub(super) enum Opening {
    Pending,
    /// TLS has just been opened. The value identifies the connection.
    Opened([u8; BINDING_BYTES]),
    /// Messages can be sent and received.
    Open,
    /// The TLS handshake failed, for this reason.
    Failed(String),
}

impl HandshakeLayer {
    pub(super) fn new(role: Role, tls: Option<&Tls>) -> io::Result<Self> {
        match (tls, role) {
            (None, _) => Ok(Self::Clear),
            (Some(_), Role::Acceptor) => Ok(Self::Undecided),
            (Some(tls), Role::Dialer) => Self::begin(tls, role),
        }
    }

    fn begin(tls: &Tls, role: Role) -> io::Result<Self> {
        Ok(Self::Tls { session: Box::new(tls.begin(role)?), is_open: false })
    }

    pub(super) const fn session(&self) -> Option<&TlsSession> {
        match self {
            Self::Clear | Self::Undecided => None,
            Self::Tls { session, .. } => Some(session),
        }
    }

    pub(super) fn into_session(self) -> Option<Box<TlsSession>> {
        match self {
            Self::Clear | Self::Undecided => None,
            Self::Tls { session, .. } => Some(session),
        }
    }

    pub(super) fn stream<'a>(&'a mut self, socket: &'a impl AsFd) -> ByteStream<'a> {
        let session = match self {
            Self::Clear | Self::Undecided => None,
            Self::Tls { session, .. } => Some(&mut **session),
        };
        ByteStream::new(socket, session)
    }

    /// Continues the TLS handshake, if there is one. If the other side turns out not to use TLS,
    /// the layer is open without it, and the greetings show that.
    pub(super) fn open(&mut self, tls: Option<&Tls>, socket: &impl AsFd) -> io::Result<Opening> {
        if matches!(self, Self::Undecided) {
            *self = match (peek(socket)?, tls) {
                (None, _) => return Ok(Opening::Pending),
                (Some(tls::FIRST_BYTE), Some(tls)) => Self::begin(tls, Role::Acceptor)?,
                (Some(_), _) => Self::Clear,
            };
        }
        let Self::Tls { session, is_open: is_open @ false } = self else { return Ok(Opening::Open) };
        if session.has_received_nothing() {
            session.flush(socket)?;
            match peek(socket)? {
                None => return Ok(Opening::Pending),
                Some(tls::FIRST_BYTE | tls::ALERT) => {}
                Some(_) => {
                    *self = Self::Clear;
                    return Ok(Opening::Open);
                }
            }
        }
        Ok(match session.negotiate(socket)? {
            Negotiation::Pending => Opening::Pending,
            Negotiation::Failed(reason) => Opening::Failed(reason),
            Negotiation::Done(binding) => {
                *is_open = true;
                Opening::Opened(binding)
            }
        })
    }

    /// Returns the reason why a connection that broke has failed in TLS, on either side.
    pub(super) fn failure(&mut self, socket: &impl AsFd) -> Option<String> {
        let Self::Tls { session, .. } = self else { return None };
        // The other side may have sent its reason before it closed the connection.
        for _ in 0..READS_AFTER_FAILURE_MAX {
            if session.is_ready() || !matches!(session.read(socket), Ok(Read::More | Read::All)) {
                break;
            }
        }
        session.failure()
    }
}

/// Returns the first byte that has arrived, if there is one, and leaves it in the socket.
fn peek(socket: &impl AsFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    match rustix::net::recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some(byte[0])),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Discards bytes that have arrived: closing a socket with unread bytes resets the connection, and
/// a reset can overtake the reason that was sent.
pub(super) fn discard(socket: &impl AsFd) {
    // It fails if nothing has arrived.
    let _ = rustix::net::recv(socket, &mut [0; DISCARDED_BYTES_MAX], RecvFlags::DONTWAIT);
}

//! The bytes of a connection, as they are or in TLS, without blocking.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{Read, RecvError};
use crate::tls::TlsSession;

/// Receives and sends the bytes of a connection. A reference to a socket is a stream without TLS.
#[derive(Debug)]
pub(crate) struct ByteStream<'a> {
    socket: BorrowedFd<'a>,
    tls: Option<&'a mut TlsSession>,
}

impl<'a> ByteStream<'a> {
    pub(crate) fn new(socket: &'a impl AsFd, tls: Option<&'a mut TlsSession>) -> Self {
        Self { socket: socket.as_fd(), tls }
    }

    /// Receives bytes. Returns `None` if there are none, and zero at the end of the stream.
    pub(crate) fn recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, RecvError> {
        loop {
            let received = match &mut self.tls {
                None => rustix::net::recv(self.socket, &mut *into, RecvFlags::DONTWAIT).map(|(n, _)| Some(n)),
                Some(tls) if tls.is_ready() => return Ok(Some(tls.deliver(into)?)),
                Some(tls) => match tls.read(self.socket) {
                    Ok(Read::More | Read::All) => continue,
                    Ok(Read::Nothing) => Ok(None),
                    Ok(Read::End) => Ok(Some(0)),
                    Err(errno) => Err(errno),
                },
            };
            match received {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                received => return Ok(received?),
            }
        }
    }

    /// Sends bytes, after which `more` follow. Returns the number of accepted bytes, which may be
    /// zero.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> rustix::io::Result<usize> {
        let quiet = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let flags = if more { quiet | SendFlags::MORE } else { quiet };
        loop {
            let sent = match &mut self.tls {
                None => rustix::net::send(self.socket, bytes, flags),
                Some(tls) => tls.send(self.socket, &[IoSlice::new(bytes)], bytes.len()),
            };
            match sent {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                sent => return sent,
            }
        }
    }

    /// Returns whether the socket has taken over all bytes that were accepted.
    pub(crate) fn flush(&mut self) -> rustix::io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| tls.flush(self.socket))
    }
}

impl<'a, S: AsFd> From<&'a S> for ByteStream<'a> {
    fn from(socket: &'a S) -> Self {
        Self::new(socket, None)
    }
}

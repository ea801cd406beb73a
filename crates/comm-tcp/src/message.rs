//! Sends and receives the messages of the handshake, without blocking or allocating.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::hello::MESSAGE_BYTES_MAX;

/// A message of known length that is being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: [u8; MESSAGE_BYTES_MAX],
    expected: usize,
    filled: usize,
}

impl Incoming {
    pub(crate) const fn new(expected: usize) -> Self {
        Self { bytes: [0; MESSAGE_BYTES_MAX], expected, filled: 0 }
    }

    /// Reads more of the message, and returns whether it is complete.
    pub(crate) fn fill(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.filled < self.expected {
            let into = &mut self.bytes[self.filled..self.expected];
            match rustix::net::recv(&socket, into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((more, _)) => self.filled += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(crate) fn message<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes().first_chunk()
    }

    pub(crate) fn after(&self, at: usize) -> &[u8] {
        self.bytes().get(at..).unwrap_or_default()
    }
}

/// A message that is being sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
    sent: usize,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self { bytes: [0; MESSAGE_BYTES_MAX], len: 0, sent: 0 }
    }
}

impl Outgoing {
    pub(crate) fn put(&mut self, message: &[u8], proof: &[u8]) {
        let len = message.len() + proof.len();
        self.bytes[..message.len()].copy_from_slice(message);
        self.bytes[message.len()..len].copy_from_slice(proof);
        self.len = len;
        self.sent = 0;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.sent == self.len
    }

    /// Sends more of the message, and returns whether all is sent.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.sent < self.len {
            let rest = &self.bytes[self.sent..self.len];
            match rustix::net::send(&socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(more) => self.sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

//! Sends and receives the messages of the handshake, without blocking or allocating.

use std::io;

use crate::hello::MESSAGE_BYTES_MAX;
use crate::protection::ByteStream;

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
    pub(crate) fn fill(&mut self, stream: &mut ByteStream<'_>) -> io::Result<bool> {
        while self.filled < self.expected {
            match stream.recv(&mut self.bytes[self.filled..self.expected])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(more) => self.filled += more,
                None => return Ok(false),
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
    pub(crate) fn flush(&mut self, stream: &mut ByteStream<'_>) -> io::Result<bool> {
        while self.sent < self.len {
            match stream.send(&self.bytes[self.sent..self.len], false)? {
                0 => return Ok(false),
                more => self.sent += more,
            }
        }
        Ok(stream.flush()?)
    }
}

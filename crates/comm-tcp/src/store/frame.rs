//! Frames on their way through a socket, without blocking.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::protocol::PREFIX_BYTES;

/// Memory grows by this much while a frame arrives, so that a sender pays for what it makes the receiver hold.
pub(super) const GROWTH_BYTES: usize = 64 * 1024;

/// Why no frame can be read any more.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The other side closed the connection, between two frames.
    Closed,
    /// The frame is longer than this side accepts.
    TooLong(usize),
    /// The connection broke, or was closed inside a frame.
    Io(io::Error),
}

impl From<Errno> for FrameError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// One frame that is arriving.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    prefix: [u8; PREFIX_BYTES],
    prefix_filled: usize,
    body: Vec<u8>,
}

impl FrameReader {
    /// Whether some of the frame has arrived.
    pub(super) const fn has_begun(&self) -> bool {
        self.prefix_filled > 0
    }

    /// Reads what has arrived, but nothing behind the frame. Returns the frame without its length once it is whole,
    /// and is then ready for the next one.
    pub(super) fn fill(
        &mut self,
        socket: impl AsFd,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, FrameError> {
        while self.prefix_filled < PREFIX_BYTES {
            match receive(&socket, &mut self.prefix[self.prefix_filled..])? {
                None => return Ok(None),
                Some(0) if self.prefix_filled == 0 => return Err(FrameError::Closed),
                Some(0) => return Err(cut()),
                Some(more) => self.prefix_filled += more,
            }
        }
        let expected = u32::from_le_bytes(self.prefix) as usize;
        if expected > bytes_max {
            return Err(FrameError::TooLong(expected));
        }
        while self.body.len() < expected {
            match self.read_more(&socket, expected)? {
                None => return Ok(None),
                Some(0) => return Err(cut()),
                Some(_) => {}
            }
        }
        self.prefix_filled = 0;
        Ok(Some(std::mem::take(&mut self.body)))
    }

    fn read_more(&mut self, socket: impl AsFd, expected: usize) -> Result<Option<usize>, FrameError> {
        let filled = self.body.len();
        self.body.resize(expected.min(filled + GROWTH_BYTES), 0);
        let received = receive(socket, &mut self.body[filled..]);
        let more = received.as_ref().ok().copied().flatten().unwrap_or(0);
        self.body.truncate(filled + more);
        received
    }
}

/// `None` if nothing has arrived; zero at the end of the stream.
pub(super) fn receive(socket: impl AsFd, into: &mut [u8]) -> Result<Option<usize>, FrameError> {
    loop {
        match rustix::net::recv(&socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => return Ok(Some(bytes)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The end of the stream where there should have been more.
pub(super) fn cut() -> FrameError {
    FrameError::Io(io::ErrorKind::UnexpectedEof.into())
}

/// One frame that is leaving.
#[derive(Debug)]
pub(super) struct FrameWriter {
    bytes: Vec<u8>,
    sent: usize,
}

impl FrameWriter {
    /// A whole frame, its length included.
    pub(super) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    /// Sends what can go, and returns whether that was all.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let rest = &self.bytes[self.sent..];
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

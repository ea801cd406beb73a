//! Sends and receives frames without blocking.

use std::io;
use std::os::fd::AsFd;

use comm_core::wire::Reader;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::budget::Value;
use super::protocol::PREFIX_BYTES;

/// Memory grows by this much while a frame arrives, so that a receiver never holds much more than
/// the sender has sent.
pub(super) const GROWTH_BYTES: usize = 64 * 1024;

/// The maximum number of bytes that one call reads of a frame, so that a fast sender does not delay
/// other clients.
const TURN_BYTES: usize = 1 << 20;

/// The error of reading a frame.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The other side closed the connection, between two frames.
    Closed,
    /// The frame is longer than this side accepts.
    TooLong(usize),
    /// The deadline passed.
    TimedOut,
    /// The connection broke, or was closed inside a frame.
    Io(io::Error),
}

impl From<Errno> for FrameError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A frame that is being received.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    prefix: [u8; PREFIX_BYTES],
    prefix_filled: usize,
    body: Vec<u8>,
    /// The number of bytes of the body that were received.
    received: usize,
    /// Whether the body is discarded because there is no memory for it.
    skips: bool,
}

/// A received frame.
#[derive(Debug)]
pub(super) enum Frame {
    /// The whole body.
    Whole(Vec<u8>),
    /// There was no memory for it.
    Skipped,
}

impl FrameReader {
    /// Whether some of the frame was received.
    pub(super) const fn has_begun(&self) -> bool {
        self.prefix_filled > 0
    }

    /// Reads more of the frame, and nothing after it. Returns the frame once it is complete; the
    /// next call reads the next one. Memory for more bytes is allocated only if `may_hold` accepts
    /// the new total.
    pub(super) fn fill(
        &mut self,
        socket: impl AsFd,
        bytes_max: usize,
        mut may_hold: impl FnMut(usize) -> bool,
    ) -> Result<Option<Frame>, FrameError> {
        while self.prefix_filled < PREFIX_BYTES {
            match receive(&socket, &mut self.prefix[self.prefix_filled..])? {
                None => return Ok(None),
                Some(0) if self.prefix_filled == 0 => return Err(FrameError::Closed),
                Some(0) => return Err(cut()),
                Some(more) => self.prefix_filled += more,
            }
        }
        let expected = Reader::new(&self.prefix).size::<u32>().unwrap_or(usize::MAX);
        if expected > bytes_max {
            return Err(FrameError::TooLong(expected));
        }
        let until = expected.min(self.received.saturating_add(TURN_BYTES));
        while self.received < until {
            let step = (expected - self.received).min(GROWTH_BYTES);
            if !self.skips && !may_hold(self.received + step) {
                (self.skips, self.body) = (true, Vec::new());
            }
            match self.read_more(&socket, step)? {
                None => return Ok(None),
                Some(0) => return Err(cut()),
                Some(more) => self.received += more,
            }
        }
        if self.received < expected {
            return Ok(None);
        }
        let Self { body, skips, .. } = std::mem::take(self);
        Ok(Some(if skips { Frame::Skipped } else { Frame::Whole(body) }))
    }

    fn read_more(&mut self, socket: impl AsFd, step: usize) -> Result<Option<usize>, FrameError> {
        let kept = if self.skips { 0 } else { self.received };
        self.body.resize(kept + step, 0);
        let received = receive(socket, &mut self.body[kept..]);
        let more = received.as_ref().ok().copied().flatten().unwrap_or(0);
        self.body.truncate(kept + more);
        received
    }
}

/// Receives bytes. Returns `None` if there are none, and zero at the end of the stream.
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

/// Returns the error for the end of a stream within a frame.
pub(super) fn cut() -> FrameError {
    FrameError::Io(io::ErrorKind::UnexpectedEof.into())
}

/// A frame that is being sent.
#[derive(Debug)]
pub(super) struct FrameWriter {
    bytes: Vec<u8>,
    /// The value after `bytes`, shared with the table.
    value: Option<Value>,
    sent: usize,
}

impl FrameWriter {
    /// Returns a writer of a frame, which begins with its length.
    pub(super) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, value: None, sent: 0 }
    }

    /// Returns a writer of a frame that ends with a value, which is not copied.
    pub(super) const fn with_value(bytes: Vec<u8>, value: Value) -> Self {
        Self { bytes, value: Some(value), sent: 0 }
    }

    /// Sends as much as possible, and returns whether that was all.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let quiet = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let value = self.value.as_deref().unwrap_or_default();
        while self.sent < self.bytes.len() + value.len() {
            let sent = match self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
                Some(rest) if value.is_empty() => rustix::net::send(&socket, rest, quiet),
                Some(rest) => rustix::net::send(&socket, rest, quiet | SendFlags::MORE),
                None => rustix::net::send(&socket, &value[self.sent - self.bytes.len()..], quiet),
            };
            match sent {
                Ok(more) => self.sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

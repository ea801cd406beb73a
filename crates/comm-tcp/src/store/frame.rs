//! Sends and receives frames without blocking.

use std::io;

use comm_core::Corruption;
use comm_core::wire::Reader;
use rustix::io::Errno;

use super::budget::Value;
use super::protocol::PREFIX_BYTES;
use crate::protection::{ByteStream, FrameBytes, FrameCheck, HEAD_BYTES_MAX, PartialCheck, RecvError};

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
    /// The bytes of a frame did not arrive as they were sent.
    Corrupted(Corruption),
    /// The connection broke, or was closed inside a frame.
    Io(io::Error),
}

impl From<Corruption> for FrameError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupted(corruption)
    }
}

impl From<RecvError> for FrameError {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Socket(errno) => errno.into(),
            RecvError::Corrupted(corruption) => Self::Corrupted(corruption),
        }
    }
}

impl From<Errno> for FrameError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A frame that is being received.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// The length of the body, and its check if frames are protected.
    head: [u8; HEAD_BYTES_MAX],
    head_filled: usize,
    /// The length of the body, once it is known.
    expected: Option<usize>,
    body: Vec<u8>,
    /// The number of bytes of the body that were received.
    received: usize,
    /// Whether the body is discarded because there is no memory for it.
    skips: bool,
    /// The check of the body so far, if frames are protected.
    computed: Option<Box<PartialCheck>>,
    /// The check that follows the body, if frames are protected.
    check: [u8; HEAD_BYTES_MAX],
    check_filled: usize,
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
        self.head_filled > 0
    }

    /// Reads more of the frame, and nothing after it. Returns the frame once it is complete; the
    /// next call reads the next one. Memory for more bytes is allocated only if `may_hold` accepts
    /// the new total.
    pub(super) fn fill<'s>(
        &mut self,
        stream: impl Into<ByteStream<'s>>,
        check: Option<&mut FrameCheck>,
        bytes_max: usize,
        mut may_hold: impl FnMut(usize) -> bool,
    ) -> Result<Option<Frame>, FrameError> {
        let mut stream = stream.into();
        let Some(expected) = self.read_head(&mut stream, check.as_deref(), bytes_max)? else {
            return Ok(None);
        };
        let until = expected.min(self.received.saturating_add(TURN_BYTES));
        while self.received < until {
            let step = (expected - self.received).min(GROWTH_BYTES);
            if !self.skips && !may_hold(self.received + step) {
                (self.skips, self.body) = (true, Vec::new());
            }
            match self.read_more(&mut stream, step)? {
                None => return Ok(None),
                Some(0) => return Err(cut()),
                Some(more) => self.received += more,
            }
        }
        if self.received < expected {
            return Ok(None);
        }
        if let Some(check) = check
            && !self.verify(&mut stream, check)?
        {
            return Ok(None);
        }
        let Self { body, skips, .. } = std::mem::take(self);
        Ok(Some(if skips { Frame::Skipped } else { Frame::Whole(body) }))
    }

    /// Reads the bytes before the body. Returns the length of the body once they have arrived.
    fn read_head(
        &mut self,
        stream: &mut ByteStream<'_>,
        check: Option<&FrameCheck>,
        bytes_max: usize,
    ) -> Result<Option<usize>, FrameError> {
        if self.expected.is_some() {
            return Ok(self.expected);
        }
        let head_bytes = check.map_or(PREFIX_BYTES, FrameCheck::head_bytes);
        while self.head_filled < head_bytes {
            match stream.recv(&mut self.head[self.head_filled..head_bytes])? {
                None => return Ok(None),
                Some(0) if self.head_filled == 0 => return Err(FrameError::Closed),
                Some(0) => return Err(cut()),
                Some(more) => self.head_filled += more,
            }
        }
        if let Some(check) = check {
            check.verify_head(&self.head[..head_bytes])?;
            self.computed = Some(Box::new(check.begin()));
        }
        let expected = Reader::new(&self.head).size::<u32>().unwrap_or(usize::MAX);
        if expected > bytes_max {
            return Err(FrameError::TooLong(expected));
        }
        self.expected = Some(expected);
        Ok(self.expected)
    }

    /// Reads the check after the body. Returns whether it has arrived.
    fn verify(&mut self, stream: &mut ByteStream<'_>, check: &mut FrameCheck) -> Result<bool, FrameError> {
        let check_bytes = check.check_bytes();
        while self.check_filled < check_bytes {
            match stream.recv(&mut self.check[self.check_filled..check_bytes])? {
                None => return Ok(false),
                Some(0) => return Err(cut()),
                Some(more) => self.check_filled += more,
            }
        }
        let computed = self.computed.take().map_or_else(|| check.begin(), |computed| *computed);
        check.verify(computed, &self.check[..check_bytes])?;
        Ok(true)
    }

    fn read_more(&mut self, stream: &mut ByteStream<'_>, step: usize) -> Result<Option<usize>, FrameError> {
        let kept = if self.skips { 0 } else { self.received };
        self.body.resize(kept + step, 0);
        let received = stream.recv(&mut self.body[kept..]);
        let more = received.as_ref().ok().copied().flatten().unwrap_or(0);
        self.body.truncate(kept + more);
        if let Some(computed) = &mut self.computed {
            computed.update(&self.body[kept..]);
        }
        Ok(received?)
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
    /// The check after the value, if frames are protected.
    check: Option<FrameBytes>,
    sent: usize,
}

impl FrameWriter {
    /// Returns a writer of bytes that are sent as they are.
    pub(super) const fn bare(bytes: Vec<u8>) -> Self {
        Self { bytes, value: None, check: None, sent: 0 }
    }

    /// Returns a writer of a frame, which begins with its length.
    pub(super) fn new(bytes: Vec<u8>, check: Option<&mut FrameCheck>) -> Self {
        let mut writer = Self::bare(bytes);
        if let Some(check) = check {
            writer.protect(check);
        }
        writer
    }

    /// Returns a writer of a frame that ends with a value, which is not copied.
    pub(super) fn with_value(bytes: Vec<u8>, value: Value, check: Option<&mut FrameCheck>) -> Self {
        let mut writer = Self { bytes, value: Some(value), check: None, sent: 0 };
        if let Some(check) = check {
            writer.protect(check);
        }
        writer
    }

    /// Adds the checks of the length and of the body.
    fn protect(&mut self, check: &mut FrameCheck) {
        let mut frame = Reader::new(&self.bytes);
        let length = frame.get().unwrap_or(0);
        let mut body = check.begin();
        body.update(frame.rest());
        self.value.iter().for_each(|value| body.update(value));
        let (head, body) = (check.head(length), check.finish(body));
        check.advance();
        self.bytes.splice(..PREFIX_BYTES, head.as_slice().iter().copied());
        if self.value.is_some() {
            self.check = Some(body);
        } else {
            self.bytes.extend_from_slice(body.as_slice());
        }
    }

    /// Sends as much as possible, and returns whether that was all.
    pub(super) fn flush<'s>(&mut self, stream: impl Into<ByteStream<'s>>) -> io::Result<bool> {
        let mut stream = stream.into();
        let value = self.value.as_deref().unwrap_or_default();
        let check = self.check.as_ref().map_or(&[][..], FrameBytes::as_slice);
        let parts = [&self.bytes[..], value, check];
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        while self.sent < whole {
            let rest = rest_of_part(parts, self.sent);
            let is_last = self.sent + rest.len() == whole;
            match stream.send(rest, !is_last)? {
                0 => return Ok(false),
                more => self.sent += more,
            }
        }
        Ok(stream.flush()?)
    }
}

/// Returns the bytes of the part that contains position `at`, from there on.
fn rest_of_part(parts: [&[u8]; 3], mut at: usize) -> &[u8] {
    for part in parts {
        if at < part.len() {
            return &part[at..];
        }
        at -= part.len();
    }
    &[]
}

//! Receives the bytes of a stream from frames with checks, without blocking.

use std::ops::Range;
use std::os::fd::AsFd;

use comm_core::Corruption;
use rustix::io::Errno;

use super::PAYLOAD_BYTES_MAX;
use super::check::FrameCheck;

/// The error of a receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RecvError {
    /// The socket failed.
    Socket(Errno),
    /// Bytes did not arrive as they were sent.
    Corrupted(Corruption),
}

impl From<Corruption> for RecvError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupted(corruption)
    }
}

impl From<RecvError> for std::io::Error {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Socket(errno) => errno.into(),
            RecvError::Corrupted(corruption) => Self::new(std::io::ErrorKind::InvalidData, corruption),
        }
    }
}

impl From<Errno> for RecvError {
    fn from(errno: Errno) -> Self {
        Self::Socket(errno)
    }
}

/// The outcome of one read of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Nothing has arrived.
    Nothing,
    /// The stream has ended.
    End,
    /// Some bytes; perhaps more are there.
    More,
    /// All bytes that are there.
    All,
}

/// The frames of one direction of a connection.
///
/// A frame is received whole into memory of its own, and its payload is delivered only after its
/// check. The memory grows to the size of the largest frame.
#[derive(Debug)]
pub(crate) struct ProtectedReceiver {
    check: FrameCheck,
    memory: Vec<u8>,
    /// The bytes that were received and not checked yet.
    unchecked: Range<usize>,
    /// The bytes that were checked and not delivered yet.
    checked: Range<usize>,
    /// The length of the payload of the next frame, once its check has passed.
    length: Option<usize>,
    /// The first bytes that did not arrive as they were sent.
    corruption: Option<Corruption>,
    /// The number of bytes to read before a length is known.
    read_ahead: usize,
}

impl ProtectedReceiver {
    pub(crate) fn new(check: FrameCheck, read_ahead: usize) -> Self {
        Self {
            check,
            memory: Vec::new(),
            unchecked: 0..0,
            checked: 0..0,
            length: None,
            corruption: None,
            read_ahead,
        }
    }

    /// Whether [`ProtectedReceiver::deliver`] delivers bytes or fails.
    pub(crate) const fn is_ready(&self) -> bool {
        self.checked.start < self.checked.end || self.corruption.is_some()
    }

    /// Delivers bytes whose check has passed, and returns their number.
    pub(crate) fn deliver(&mut self, into: &mut [u8]) -> Result<usize, Corruption> {
        let mut delivered = 0;
        while delivered < into.len() && !self.checked.is_empty() {
            let into = &mut into[delivered..];
            let length = into.len().min(self.checked.len());
            let checked = self.checked.start..self.checked.start + length;
            into[..length].copy_from_slice(&self.memory[checked]);
            self.checked.start += length;
            delivered += length;
            self.check_next();
        }
        match &self.corruption {
            Some(corruption) if delivered == 0 && !into.is_empty() => Err(corruption.clone()),
            _ => Ok(delivered),
        }
    }

    /// Reads the socket once. Call it when nothing is ready.
    pub(crate) fn read(&mut self, socket: impl AsFd) -> rustix::io::Result<Read> {
        let spare = self.spare();
        let capacity = spare.len();
        let received = match rustix::io::read(socket, spare) {
            Ok(0) => return Ok(Read::End),
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Read::Nothing),
            Err(errno) => return Err(errno),
        };
        self.unchecked.end += received;
        self.check_next();
        Ok(if received == capacity { Read::More } else { Read::All })
    }

    /// Returns memory for the rest of the next frame and the head of the one after it, or for
    /// reading ahead if that is more.
    fn spare(&mut self) -> &mut [u8] {
        self.memory.copy_within(self.unchecked.clone(), 0);
        self.unchecked = 0..self.unchecked.len();
        self.checked = 0..0;
        let head = self.check.head_bytes();
        let frame = self.length.map_or(0, |length| self.frame_bytes(length));
        let end = (frame + head).max(self.read_ahead).max(self.unchecked.end + head);
        if self.memory.len() < end {
            self.memory.resize(end, 0);
        }
        &mut self.memory[self.unchecked.end..end]
    }

    const fn frame_bytes(&self, length: usize) -> usize {
        self.check.head_bytes() + length + self.check.check_bytes()
    }

    /// Checks the next frame, once it has arrived and the one before it was delivered.
    fn check_next(&mut self) {
        if !self.is_ready()
            && let Err(corruption) = self.try_check()
        {
            self.corruption = Some(corruption);
        }
    }

    fn try_check(&mut self) -> Result<(), Corruption> {
        let bytes = &self.memory[self.unchecked.clone()];
        let head_bytes = self.check.head_bytes();
        let length = match (self.length, bytes.get(..head_bytes)) {
            (Some(length), _) => length,
            (None, None) => return Ok(()),
            (None, Some(head)) => {
                let length = self.check.verify_head(head)? as usize;
                if !(1..=PAYLOAD_BYTES_MAX).contains(&length) {
                    return Err(self.check.corruption());
                }
                self.length = Some(length);
                length
            }
        };
        let Some(frame) = bytes.get(..self.frame_bytes(length)) else { return Ok(()) };
        let (payload, check) = frame[head_bytes..].split_at(length);
        let mut computed = self.check.begin();
        computed.update(payload);
        self.check.verify(computed, check)?;
        let payload = self.unchecked.start + head_bytes;
        self.checked = payload..payload + length;
        self.unchecked.start += self.frame_bytes(length);
        self.length = None;
        Ok(())
    }
}

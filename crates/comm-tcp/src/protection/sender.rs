//! Sends the bytes of a stream in frames with checks, without blocking.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::PAYLOAD_BYTES_MAX;
use super::check::FrameCheck;

/// The maximum number of pieces of one write, besides the head and the check of a frame.
pub(crate) const PIECES_MAX: usize = 16;

/// The frames of one direction of a connection.
///
/// A frame whose first bytes the socket has accepted must be completed, whatever the caller sends
/// next. Its other bytes are copied, and sent by [`ProtectedSender::flush`]. Until then the
/// transport does not release the bytes of the frame, so that the caller waits.
#[derive(Debug)]
pub(crate) struct ProtectedSender {
    check: FrameCheck,
    /// The rest of the frame that is being sent, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
}

impl ProtectedSender {
    pub(crate) const fn new(check: FrameCheck) -> Self {
        Self { check, unsent: Vec::new(), sent: 0 }
    }

    /// Sends as much of the pieces as possible: at most [`PIECES_MAX`], with `offered` bytes in
    /// total. Returns the number of accepted bytes.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        pieces: &[IoSlice<'_>],
        offered: usize,
    ) -> rustix::io::Result<usize> {
        if !self.flush(&socket)? {
            return Ok(0);
        }
        let mut accepted = 0;
        while accepted < offered && !self.holds_frame() {
            let length = (offered - accepted).min(PAYLOAD_BYTES_MAX);
            if !self.send_frame(&socket, pieces, accepted, length)? {
                break;
            }
            accepted += length;
        }
        Ok(accepted)
    }

    /// Sends a frame of `length` bytes of the pieces, from `start` on. Returns whether the socket
    /// has accepted some of it.
    fn send_frame(
        &mut self,
        socket: impl AsFd,
        pieces: &[IoSlice<'_>],
        start: usize,
        length: usize,
    ) -> rustix::io::Result<bool> {
        let mut parts = [IoSlice::new(&[]); PIECES_MAX + 2];
        let end = 1 + cut(pieces, start, length, &mut parts[1..=PIECES_MAX]);
        let mut payload = self.check.begin();
        parts[1..end].iter().for_each(|piece| payload.update(piece));
        // A payload has at most `PAYLOAD_BYTES_MAX` bytes.
        let (head, check) = (self.check.head(length as u32), self.check.finish(payload));
        (parts[0], parts[end]) = (IoSlice::new(head.as_slice()), IoSlice::new(check.as_slice()));
        let parts = &parts[..=end];
        let sent = send_all(socket, parts)?;
        let whole = head.as_slice().len() + length + check.as_slice().len();
        if sent == 0 {
            return Ok(false);
        }
        self.check.advance();
        if sent < whole {
            self.hold(parts, sent);
        }
        Ok(true)
    }

    /// Copies the bytes of a frame that the socket has not accepted.
    fn hold(&mut self, parts: &[IoSlice<'_>], mut skip: usize) {
        self.unsent.clear();
        self.sent = 0;
        for part in parts {
            let skipped = skip.min(part.len());
            self.unsent.extend_from_slice(&part[skipped..]);
            skip -= skipped;
        }
    }

    /// Whether a part of a frame waits to be sent.
    pub(crate) const fn holds_frame(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Sends the rest of the current frame. Returns whether nothing is left of it.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> rustix::io::Result<bool> {
        if self.holds_frame() {
            self.sent += send_all(socket, &[IoSlice::new(&self.unsent[self.sent..])])?;
        }
        Ok(!self.holds_frame())
    }

    /// Drops the rest of the current frame, because the connection is broken.
    pub(crate) fn give_up(&mut self) {
        self.sent = self.unsent.len();
    }
}

/// Copies the slices of `length` bytes of the pieces, from `start` on, to `into`. Returns their
/// number.
pub(crate) fn cut<'a>(
    pieces: &'a [IoSlice<'a>],
    start: usize,
    length: usize,
    into: &mut [IoSlice<'a>],
) -> usize {
    let (mut skip, mut left, mut count) = (start, length, 0);
    for piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let taken = left.min(piece.len() - skipped);
        if taken > 0 && count < into.len() {
            into[count] = IoSlice::new(&piece[skipped..skipped + taken]);
            (left, count) = (left - taken, count + 1);
        }
    }
    count
}

/// Sends as much as the socket accepts, which may be nothing.
fn send_all(socket: impl AsFd, parts: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}

//! Bytes that have arrived.

use std::collections::VecDeque;

/// A queue of bytes that the receiver sees only a part of. Bytes that were shown stay visible.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    bytes: VecDeque<u8>,
    shown: usize,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.shown = 0;
    }

    /// Passes the number of hidden bytes to `more`, shows as many of them as it returns, and
    /// returns the number of visible bytes.
    pub(crate) fn show(&mut self, more: impl FnOnce(usize) -> usize) -> usize {
        self.shown += more(self.bytes.len() - self.shown);
        self.shown
    }

    /// Returns the number of visible bytes.
    pub(crate) const fn shown(&self) -> usize {
        self.shown
    }

    /// Copies the first bytes without consuming them. The queue must hold enough to fill `into`.
    pub(crate) fn peek(&self, into: &mut [u8]) {
        let (front, back) = self.bytes.as_slices();
        let from_front = front.len().min(into.len());
        let (head, tail) = into.split_at_mut(from_front);
        head.copy_from_slice(&front[..from_front]);
        tail.copy_from_slice(&back[..tail.len()]);
    }

    /// Drops the first bytes, which must be visible.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
        self.shown -= bytes;
    }
}

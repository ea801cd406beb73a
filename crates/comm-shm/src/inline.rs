//! Inline messages: a copy of the last small message, next to the position that announces it.
//!
//! A rank that waits for a message polls the cache line of the writer's position, and then has to
//! fetch the line of the ring that contains the message. So a small message that is published alone
//! is also written next to the position, in the same cache line. A reader that lags behind, or that
//! sees the copy being overwritten, takes the message from the ring.

use crate::sync::{AtomicU64, Ordering, fence};

const WORD: usize = size_of::<u64>();
/// The words that fit into the cache line of the position. Longer messages are read from the ring.
const WORDS: usize = 6;
/// The longest message that is sent inline.
pub(crate) const INLINE_BYTES_MAX: usize = WORD * WORDS;
/// The number of low bits of a mark that hold the length. The bits above hold the position.
const LENGTH_BITS: u32 = 8;

/// A copy in shared memory, and a mark that identifies its bytes of the stream. All zeros means
/// that there is no copy.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct InlineSlot {
    mark: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Returns the mark of a copy of the `len` bytes before a position of the stream.
const fn mark(end: u64, len: usize) -> u64 {
    (end << LENGTH_BITS) | len as u64
}

impl InlineSlot {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self { mark: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes the first `len` of these bytes, which end at a position of the stream. The writer
    /// calls it before it publishes that position.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8; INLINE_BYTES_MAX], len: usize, end: u64) {
        self.mark.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        // To write all words is faster than to write only those in use.
        for (word, bytes) in self.words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.mark.store(mark(end, len), Ordering::Release);
    }

    /// Reads the copy of exactly these bytes of the stream. Returns false if there is none.
    #[inline]
    pub(crate) fn read(&self, start: u64, end: u64, into: &mut InlineMessage) -> bool {
        let Some(len) = usize::try_from(end.wrapping_sub(start)).ok().filter(|len| *len <= INLINE_BYTES_MAX)
        else {
            return false;
        };
        let mark = mark(end, len);
        if len == 0 || self.mark.load(Ordering::Acquire) != mark {
            return false;
        }
        for (word, bytes) in self.words.iter().zip(into.bytes.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        fence(Ordering::Acquire);
        let is_whole = self.mark.load(Ordering::Relaxed) == mark;
        (into.start, into.len) = (start, if is_whole { len } else { 0 });
        is_whole
    }
}

/// A received inline message, in private memory of this process.
#[derive(Debug)]
pub(crate) struct InlineMessage {
    bytes: [u8; INLINE_BYTES_MAX],
    start: u64,
    len: usize,
}

impl InlineMessage {
    pub(crate) const fn empty() -> Self {
        Self { bytes: [0; INLINE_BYTES_MAX], start: 0, len: 0 }
    }

    /// Returns the `len` bytes at a position of the stream, if the message contains all of them.
    #[inline]
    pub(crate) fn get(&self, position: u64, len: usize) -> Option<&[u8]> {
        let offset = usize::try_from(position.wrapping_sub(self.start)).ok()?;
        self.bytes[..self.len].get(offset..offset.checked_add(len)?)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_last_message_is_read() {
        let (slot, mut message) = (InlineSlot::new(), InlineMessage::empty());
        assert!(!slot.read(0, 0, &mut message) && !slot.read(0, 4, &mut message));
        assert_eq!(message.get(0, 1), None);
        for len in 1..=INLINE_BYTES_MAX {
            let bytes: [u8; INLINE_BYTES_MAX] = std::array::from_fn(|at| (at + len) as u8);
            let (start, end) = (1000, 1000 + len as u64);
            slot.write(&bytes, len, end);
            assert!(!slot.read(start - 1, end, &mut message) && !slot.read(start, end + 1, &mut message));
            assert!(slot.read(start, end, &mut message));
            assert_eq!(message.get(start, len), Some(&bytes[..len]));
            assert_eq!(message.get(end - 1, 1), Some(&bytes[len - 1..len]));
            assert_eq!(message.get(start, 1), Some(&bytes[..1]));
            assert_eq!((message.get(start - 1, 1), message.get(end, 1)), (None, None));
            assert_eq!((message.get(start, len + 1), message.get(start, usize::MAX)), (None, None));
        }
    }

    #[test]
    fn a_copy_that_is_being_overwritten_is_not_read() {
        let (slot, mut message) = (InlineSlot::new(), InlineMessage::empty());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut end = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    end += INLINE_BYTES_MAX as u64;
                    slot.write(&[(end / 7) as u8; INLINE_BYTES_MAX], INLINE_BYTES_MAX, end);
                }
            });
            let mut seen = 0;
            while seen < 10_000 {
                let end = slot.mark.load(Ordering::Relaxed) >> LENGTH_BITS;
                if end > 0 && slot.read(end - INLINE_BYTES_MAX as u64, end, &mut message) {
                    assert_eq!(message.bytes, [(end / 7) as u8; INLINE_BYTES_MAX]);
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_mark_that_no_correct_peer_writes_is_no_message() {
        let (slot, mut message) = (InlineSlot::new(), InlineMessage::empty());
        for value in [u64::MAX, mark(5, 200), mark(5, 0), mark(5, 49)] {
            slot.mark.store(value, Ordering::Relaxed);
            for (start, end) in [(0, 5), (5, 5), (5, 0), (u64::MAX - 90, 5), (0, u64::MAX)] {
                assert!(!slot.read(start, end, &mut message), "{value} {start} {end}");
            }
        }
    }
}

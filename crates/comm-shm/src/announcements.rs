//! Announcements of small messages: where one ends, and a copy of it if it fits.
//!
//! A rank that waits for a message polls one cache line, and the processors of both sides exchange
//! that line for each message. If it were the line of the tail, a writer that is ahead of the
//! reader would wait for the line with every message. So a small message is announced on a line of
//! its own, which its position in the stream selects: the reader looks where its next message is
//! announced, while the writer writes later ones. The writer moves the tail only for larger
//! messages.
//!
//! A very small message is also copied onto the line that announces it, so that the reader need not
//! fetch the line of the ring that contains it. A reader that lags behind, or that sees the copy
//! being overwritten, takes the message from the ring.

use crate::prefetch::{self, Intent};
use crate::sync::{AtomicU64, Ordering, fence};

const WORD: usize = size_of::<u64>();
/// The words of a copy: those that fit onto a cache line next to its position.
const WORDS: usize = 6;
/// The longest message that is copied onto the line. Longer ones are read from the ring.
pub(crate) const INLINE_BYTES_MAX: usize = WORD * WORDS;
/// The longest message that is announced: for longer ones, the time of one cache line is nothing.
pub(crate) const ANNOUNCED_BYTES_MAX: usize = 4096 + 512;
/// The number of low bits of a mark that hold the length. The bits above hold the position.
const LENGTH_BITS: u32 = 8;

/// The number of lines. It is odd, so that messages of a usual size do not share a line with the
/// ones before them.
#[cfg(not(loom))]
const LINES: usize = 7;
#[cfg(loom)]
const LINES: usize = 1;
/// The bytes of the stream for which there is one line: no more than a message with its header.
const BYTES_PER_LINE: u64 = 32;

/// The lines of one direction, in shared memory. All zeros means that nothing was announced.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Announcements([Announcement; LINES]);

/// The announcement of a message, and a mark that identifies the copied bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Announcement {
    end: AtomicU64,
    mark: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Returns the mark of a copy of the `len` bytes before a position of the stream.
const fn mark(end: u64, len: usize) -> u64 {
    (end << LENGTH_BITS) | len as u64
}

impl Announcements {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Announcement::new()))
    }

    /// The line of the message that starts at a position of the stream.
    #[inline]
    pub(crate) const fn of(&self, start: u64) -> &Announcement {
        &self.0[(start / BYTES_PER_LINE) as usize % LINES]
    }
}

impl Announcement {
    #[cfg(test)]
    fn new() -> Self {
        Self {
            end: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The end of the last message that was announced here. All bytes before it are in the ring, or
    /// have descriptors.
    #[inline]
    pub(crate) fn end(&self, order: Ordering) -> u64 {
        self.end.load(order)
    }

    /// Announces that all bytes before a position have been written.
    #[inline]
    pub(crate) fn announce(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// Lets the processor fetch the line.
    #[inline]
    pub(crate) fn prefetch(&self, intent: Intent) {
        prefetch::lines(std::ptr::from_ref(self).cast(), size_of::<Self>(), intent);
    }

    /// Copies the first `len` of these bytes, which end at a position of the stream. The writer
    /// calls it before it announces that position.
    #[inline]
    pub(crate) fn copy(&self, bytes: &[u8; INLINE_BYTES_MAX], len: usize, end: u64) {
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
        let (slot, mut message) = (Announcement::new(), InlineMessage::empty());
        assert!(!slot.read(0, 0, &mut message) && !slot.read(0, 4, &mut message));
        assert_eq!(message.get(0, 1), None);
        for len in 1..=INLINE_BYTES_MAX {
            let bytes: [u8; INLINE_BYTES_MAX] = std::array::from_fn(|at| (at + len) as u8);
            let (start, end) = (1000, 1000 + len as u64);
            slot.copy(&bytes, len, end);
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
        let (slot, mut message) = (Announcement::new(), InlineMessage::empty());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut end = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    end += INLINE_BYTES_MAX as u64;
                    slot.copy(&[(end / 7) as u8; INLINE_BYTES_MAX], INLINE_BYTES_MAX, end);
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
        let (slot, mut message) = (Announcement::new(), InlineMessage::empty());
        for value in [u64::MAX, mark(5, 200), mark(5, 0), mark(5, 49)] {
            slot.mark.store(value, Ordering::Relaxed);
            for (start, end) in [(0, 5), (5, 5), (5, 0), (u64::MAX - 90, 5), (0, u64::MAX)] {
                assert!(!slot.read(start, end, &mut message), "{value} {start} {end}");
            }
        }
    }

    /// The writer may be on the next line while the reader reads this one.
    #[test]
    fn messages_in_a_row_have_lines_of_their_own() {
        const HEADER: u64 = 32;
        let announcements = Announcements::new();
        for payload in [1, 4, 16, 64, 100, 256, 1000, 1024, 2048, 4096] {
            for number in 0..1000 {
                let start = number * (HEADER + payload);
                let next = start + HEADER + payload;
                assert!(!std::ptr::eq(announcements.of(start), announcements.of(next)), "{start} {next}");
            }
        }
    }
}

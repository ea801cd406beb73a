//! A copy of the last small message, next to the position that tells of it.
//!
//! Who waits for a message looks at the writer's position, which lies in one cache line, and then has to fetch the line of
//! the ring in which the message lies. A small message that was published alone is therefore also written behind the
//! position: it comes along with it. It is no more than a copy. A reader that is behind, or that sees the copy being
//! written over, takes the message from the ring.

use crate::sync::{AtomicU64, Ordering, fence};

const WORD: usize = size_of::<u64>();
/// How many words fit into the line of the position, and into the one that processors fetch with it.
const NEAR_WORDS: usize = 6;
const FAR_WORDS: usize = 6;
/// The longest message that is copied.
pub(crate) const ECHO_BYTES: usize = WORD * (NEAR_WORDS + FAR_WORDS);
/// The mark leaves so many bits of a position away, and has the length there.
const LENGTH_BITS: u32 = 8;

/// What says which bytes of the stream the copy is of, and the start of the copy. All zeros is no copy.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Near {
    mark: AtomicU64,
    words: [AtomicU64; NEAR_WORDS],
}

/// The rest of the copy.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Far {
    words: [AtomicU64; FAR_WORDS],
}

#[cfg(test)]
impl Near {
    pub(crate) fn new() -> Self {
        Self { mark: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

#[cfg(test)]
impl Far {
    pub(crate) fn new() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The mark of a copy of so many bytes before a position of the stream.
const fn mark(end: u64, len: usize) -> u64 {
    (end << LENGTH_BITS) | len as u64
}

/// Both parts of a copy in shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo<'a> {
    pub(crate) near: &'a Near,
    pub(crate) far: &'a Far,
}

impl Echo<'_> {
    /// Copies the first `len` of these bytes, which end at a position of the stream. To be called by the writer, before
    /// it publishes that position.
    #[inline]
    pub(crate) fn put(&self, bytes: &[u8; ECHO_BYTES], len: usize, end: u64) {
        self.near.mark.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let (near, far) = bytes.split_at(NEAR_WORDS * WORD);
        put(&self.near.words, near);
        if len > near.len() {
            put(&self.far.words, far);
        }
        self.near.mark.store(mark(end, len), Ordering::Release);
    }

    /// Takes the copy of just these bytes of the stream. False if there is none, or none any more.
    #[inline]
    pub(crate) fn take(&self, start: u64, end: u64, into: &mut Heard) -> bool {
        let Some(len) = usize::try_from(end.wrapping_sub(start)).ok().filter(|len| *len <= ECHO_BYTES) else {
            return false;
        };
        let mark = mark(end, len);
        if len == 0 || self.near.mark.load(Ordering::Acquire) != mark {
            return false;
        }
        let (near, far) = into.bytes.split_at_mut(NEAR_WORDS * WORD);
        take(&self.near.words, near);
        if len > near.len() {
            take(&self.far.words, far);
        }
        fence(Ordering::Acquire);
        let whole = self.near.mark.load(Ordering::Relaxed) == mark;
        (into.start, into.len) = (start, if whole { len } else { 0 });
        whole
    }
}

/// Writes all the words of a line: that takes less than to count them.
#[inline]
fn put<const N: usize>(words: &[AtomicU64; N], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.as_chunks().0) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

/// Reads all the words of a line.
#[inline]
fn take<const N: usize>(words: &[AtomicU64; N], into: &mut [u8]) {
    for (word, bytes) in words.iter().zip(into.as_chunks_mut().0) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// A message that was taken from a copy, in memory of this side's own.
#[derive(Debug)]
pub(crate) struct Heard {
    bytes: [u8; ECHO_BYTES],
    start: u64,
    len: usize,
}

impl Heard {
    pub(crate) const fn nothing() -> Self {
        Self { bytes: [0; ECHO_BYTES], start: 0, len: 0 }
    }

    /// So many bytes from a position of the stream on, if all of them are here.
    #[inline]
    pub(crate) fn from(&self, position: u64, len: usize) -> Option<&[u8]> {
        let offset = usize::try_from(position.wrapping_sub(self.start)).ok()?;
        self.bytes[..self.len].get(offset..offset.checked_add(len)?)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn parts() -> (Near, Far) {
        (Near::new(), Far::new())
    }

    #[test]
    fn a_message_is_heard_once_it_is_the_last() {
        let (near, far) = parts();
        let (echo, mut heard) = (Echo { near: &near, far: &far }, Heard::nothing());
        assert!(!echo.take(0, 0, &mut heard) && !echo.take(0, 4, &mut heard));
        assert_eq!(heard.from(0, 1), None);
        for len in 1..=ECHO_BYTES {
            let bytes: [u8; ECHO_BYTES] = std::array::from_fn(|at| (at + len) as u8);
            let (start, end) = (1000, 1000 + len as u64);
            echo.put(&bytes, len, end);
            assert!(!echo.take(start - 1, end, &mut heard) && !echo.take(start, end + 1, &mut heard));
            assert!(echo.take(start, end, &mut heard));
            assert_eq!(heard.from(start, len), Some(&bytes[..len]));
            assert_eq!(heard.from(end - 1, 1), Some(&bytes[len - 1..len]));
            assert_eq!(heard.from(start, 1), Some(&bytes[..1]));
            assert_eq!((heard.from(start - 1, 1), heard.from(end, 1)), (None, None));
            assert_eq!((heard.from(start, len + 1), heard.from(start, usize::MAX)), (None, None));
        }
    }

    #[test]
    fn what_is_written_over_is_not_heard() {
        let (near, far) = parts();
        let (echo, mut heard) = (Echo { near: &near, far: &far }, Heard::nothing());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut end = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    end += ECHO_BYTES as u64;
                    echo.put(&[(end / 7) as u8; ECHO_BYTES], ECHO_BYTES, end);
                }
            });
            let mut seen = 0;
            while seen < 10_000 {
                let end = near.mark.load(Ordering::Relaxed) >> LENGTH_BITS;
                if end > 0 && echo.take(end - ECHO_BYTES as u64, end, &mut heard) {
                    assert_eq!(heard.bytes, [(end / 7) as u8; ECHO_BYTES]);
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_mark_that_no_correct_peer_writes_is_no_message() {
        let (near, far) = parts();
        let (echo, mut heard) = (Echo { near: &near, far: &far }, Heard::nothing());
        for value in [u64::MAX, mark(5, 200), mark(5, 0), mark(5, 97)] {
            near.mark.store(value, Ordering::Relaxed);
            for (start, end) in [(0, 5), (5, 5), (5, 0), (u64::MAX - 90, 5), (0, u64::MAX)] {
                assert!(!echo.take(start, end, &mut heard), "{value} {start} {end}");
            }
        }
    }
}

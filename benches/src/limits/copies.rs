//! Copies messages of two threads through memory that both share.
#![expect(unsafe_code, reason = "one thread writes the memory that another one reads, in turns")]

use std::cell::UnsafeCell;
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exchange::{End, wait_for};

/// The alignment of all memory. Copies between memory that lies alike in its pages are fastest.
const PAGE: usize = 4096;
/// The bytes that are announced together: so few that the reader soon begins, but enough that the
/// line of the announcement hardly counts.
const PART: usize = 3 * PAGE;

/// A part of a message.
#[repr(align(4096))]
struct Part(UnsafeCell<[u8; PART]>);

// SAFETY: only `Copies` accesses it, of which two take turns.
unsafe impl Sync for Part {}

#[derive(Default)]
#[repr(align(128))]
struct Announcement(AtomicU64);

/// The messages of one thread. It may write one while the other thread reads the one before.
pub(crate) struct Stream([Vec<(Announcement, Box<Part>)>; 2]);

impl Stream {
    /// Creates memory for messages of up to this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let part = || (Announcement::default(), Box::new(Part(UnsafeCell::new([0; PART]))));
        Self([(); 2].map(|()| (0..bytes.div_ceil(PART)).map(|_| part()).collect()))
    }

    fn parts(&self, call: u64) -> impl Iterator<Item = (&AtomicU64, *mut u8)> {
        self.0[call as usize % 2].iter().map(|(announcement, part)| (&announcement.0, part.0.get().cast()))
    }
}

/// Returns the bytes from the first page on, a page less than there are.
fn from_page(memory: &mut [u8]) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
    let end = memory.len() - PAGE + start;
    &mut memory[start..end]
}

/// Copies between memory of its own and the streams.
pub(crate) struct Copies {
    ours: Arc<Stream>,
    theirs: Arc<Stream>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Copies {
    pub(crate) fn new(ours: Arc<Stream>, theirs: Arc<Stream>, bytes: usize) -> Self {
        Self { ours, theirs, sent: vec![1; bytes + PAGE], received: vec![1; bytes + PAGE] }
    }
}

impl End for Copies {
    fn write(&mut self, call: u64) {
        let sent = from_page(&mut self.sent);
        sent.iter_mut().last().into_iter().for_each(|last| *last = call as u8);
        for ((announcement, part), bytes) in self.ours.parts(call).zip(sent.chunks(PART)) {
            // SAFETY: a chunk is at most as long as a part. Its reader has read it two calls ago,
            // because it has answered the last call since.
            unsafe { copy_nonoverlapping(bytes.as_ptr(), part, bytes.len()) };
            announcement.store(call, Ordering::Release);
        }
    }

    fn read(&mut self, call: u64) {
        let received = from_page(&mut self.received);
        for ((announcement, part), bytes) in self.theirs.parts(call).zip(received.chunks_mut(PART)) {
            wait_for(announcement, call);
            // SAFETY: a chunk is at most as long as a part. Its writer has announced it, and does
            // not write it again before this thread has answered.
            unsafe { copy_nonoverlapping(part.cast_const(), bytes.as_mut_ptr(), bytes.len()) };
        }
        assert_eq!(received.last(), Some(&(call as u8)), "the message of another call");
    }
}

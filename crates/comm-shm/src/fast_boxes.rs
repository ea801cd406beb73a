//! Fast boxes: memory for small messages, apart from the ring.
//!
//! A ring is long, so each message in it is on cache lines that neither side has used lately, and
//! the position that publishes it is on another one. A fast box is used again as soon as its last
//! message was read, so that its lines stay in the fastest caches, and the first line of a message
//! is the one that the reader polls.
//!
//! There are boxes of a few sizes, used in turn within each size. A reader polls the next box of
//! each size. The writer uses a box once it knows that the reader has read past its last message.
//! It learns this without another cache line wherever messages go in both directions: each of them
//! contains the position to which its sender has read. A message for which no box is free goes
//! through the ring.

use std::sync::atomic::AtomicU8;

use crate::prefetch::{self, Intent};
use crate::sync::{AtomicU64, Ordering};

/// The distance of boxes is a multiple of two cache lines, because processors fetch them in pairs.
const PAIR_BYTES: usize = 2 * LINE_BYTES;
const LINE_BYTES: usize = 64;
const HEADER_BYTES: usize = size_of::<Header>();

/// The pairs of lines in a box of each size.
const PAIRS: [usize; BoxSize::COUNT] = [1, 9, 37];
/// The pairs from one box of a size to the next one. A gap behind each box for 1 KiB was measured
/// to help, and more so the longer it is, up to 1 KiB; probably because a processor that reads a
/// box fetches lines behind it, which the writer has taken for its next message.
const DISTANCES: [usize; BoxSize::COUNT] = [1, 17, 37];
/// The number of boxes of each size: enough for a writer that is ahead of the reader. Where
/// messages go in both directions, two suffice, and four were measured to be slower.
#[cfg(not(loom))]
const BOXES: [usize; BoxSize::COUNT] = [16, 2, 2];
#[cfg(loom)]
const BOXES: [usize; BoxSize::COUNT] = [1, 1, 1];
const BOXES_MAX: usize = 16;
/// The first pair of the first box of each size.
const FIRST_PAIRS: [usize; BoxSize::COUNT] =
    [0, BOXES[0] * DISTANCES[0], BOXES[0] * DISTANCES[0] + BOXES[1] * DISTANCES[1]];
const PAIRS_OF_ALL: usize = FIRST_PAIRS[2] + BOXES[2] * DISTANCES[2];

/// The number of bits for the length of a message.
const LENGTH_BITS: u32 = 13;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
const _: () = assert!(BOXED_BYTES_MAX as u64 <= LENGTH_MASK);

/// The bytes of a message that are on the line of the header.
pub(crate) const FIRST_LINE_BYTES: usize = LINE_BYTES - HEADER_BYTES;
/// The longest message for which there is a box.
pub(crate) const BOXED_BYTES_MAX: usize = BoxSize::Large.capacity();

/// The size of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoxSize {
    /// For elements and short vectors.
    Tiny = 0,
    /// For up to 1 KiB.
    Small = 1,
    /// For up to 4 KiB.
    Large = 2,
}

impl BoxSize {
    const COUNT: usize = 3;
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Tiny, Self::Small, Self::Large];

    /// The bytes of a message that a box holds.
    #[inline]
    const fn capacity(self) -> usize {
        PAIRS[self as usize] * PAIR_BYTES - HEADER_BYTES
    }

    /// The number of boxes of this size after which a reader publishes that it has read them: the
    /// writer may have nothing to receive that tells it.
    #[inline]
    pub(crate) const fn until_published(self) -> usize {
        BOXES[self as usize].div_ceil(2)
    }

    /// The smallest box for a message of this length.
    #[inline]
    pub(crate) const fn of(len: usize) -> Option<Self> {
        if len <= Self::Tiny.capacity() {
            Some(Self::Tiny)
        } else if len <= Self::Small.capacity() {
            Some(Self::Small)
        } else if len <= Self::Large.capacity() {
            Some(Self::Large)
        } else {
            None
        }
    }
}

/// Names one box of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BoxPlace {
    pub(crate) size: BoxSize,
    number: usize,
}

impl BoxPlace {
    /// The box of the same size that is used after this one.
    #[inline]
    const fn next(self) -> Self {
        Self { size: self.size, number: (self.number + 1) % BOXES[self.size as usize] }
    }

    /// The pair of lines with which the box begins.
    #[inline]
    const fn first_pair(self) -> usize {
        FIRST_PAIRS[self.size as usize] + self.number * DISTANCES[self.size as usize]
    }
}

/// The start of a box.
#[derive(Debug)]
#[repr(C)]
struct Header {
    /// The end of the message in the stream; zero if there has been none.
    end: AtomicU64,
    /// The length of the message in the low [`LENGTH_BITS`] bits. Above them, the low bits of the
    /// position to which the writer of the message had read the stream that it receives.
    details: AtomicU64,
}

/// Two cache lines. The first pair of a box begins with its header; in the others, these are bytes
/// of the message.
#[derive(Debug)]
#[repr(C, align(128))]
struct Pair {
    header: Header,
    bytes: [AtomicU8; PAIR_BYTES - HEADER_BYTES],
}

/// The boxes of one direction, in shared memory: those of each size after those of the smaller one.
/// All zeros means that there was no message.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FastBoxes {
    pairs: [Pair; PAIRS_OF_ALL],
}

#[cfg(test)]
impl Pair {
    fn new() -> Self {
        let header = Header { end: AtomicU64::new(0), details: AtomicU64::new(0) };
        Self { header, bytes: std::array::from_fn(|_| AtomicU8::new(0)) }
    }
}

impl FastBoxes {
    #[cfg(test)]
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { pairs: std::array::from_fn(|_| Pair::new()) })
    }

    #[inline]
    fn header(&self, place: BoxPlace) -> &Header {
        &self.pairs[place.first_pair()].header
    }

    /// The address of the memory of a box, apart from its header, and its size. Another process may
    /// write to it at any time.
    #[inline]
    pub(crate) fn memory(&self, place: BoxPlace) -> (*const u8, usize) {
        let pairs = &self.pairs[place.first_pair()..][..PAIRS[place.size as usize]];
        (pairs.as_ptr().cast::<u8>().wrapping_byte_add(HEADER_BYTES), place.size.capacity())
    }

    /// Writes as a broken or hostile peer may.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn overwrite(&self, size: BoxSize, number: usize, end: u64, len: u64, head: u64) {
        let header = self.header(BoxPlace { size, number: number % BOXES[size as usize] });
        header.details.store(details(len, head), Ordering::Relaxed);
        header.end.store(end, Ordering::Release);
    }

    /// Lets the processor fetch the header and the first `len` bytes of a box.
    #[inline]
    pub(crate) fn prefetch(&self, place: BoxPlace, len: usize, intent: Intent) {
        let start = std::ptr::from_ref(self.header(place));
        prefetch::lines(start.cast(), HEADER_BYTES + len, intent);
    }

    /// The same without the line of the header, which the reader polls.
    #[inline]
    pub(crate) fn prefetch_unpolled(&self, place: BoxPlace, len: usize, intent: Intent) {
        let start = std::ptr::from_ref(self.header(place)).cast::<u8>();
        let unpolled = len.saturating_sub(FIRST_LINE_BYTES);
        prefetch::lines(start.wrapping_byte_add(LINE_BYTES), unpolled, intent);
    }
}

/// A message in a box.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoxedMessage {
    pub(crate) place: BoxPlace,
    /// Its place in the stream.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) acknowledged: Acknowledged,
}

/// The low bits of the position to which the sender of a message had read the other stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledged(u64);

impl Acknowledged {
    /// The highest such position up to `published`, the end of that stream. A position of a broken
    /// peer beyond the end becomes a very old one.
    #[inline]
    pub(crate) const fn position(self, published: u64) -> u64 {
        let unread = (published.wrapping_sub(self.0) << LENGTH_BITS) >> LENGTH_BITS;
        published.saturating_sub(unread)
    }
}

/// The second word of a header.
#[inline]
const fn details(len: u64, head: u64) -> u64 {
    (head << LENGTH_BITS) | (len & LENGTH_MASK)
}

/// The side that writes messages into boxes.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The next box of each size.
    next: [usize; BoxSize::COUNT],
    /// The ends of the last messages in all boxes.
    ends: [[u64; BOXES_MAX]; BoxSize::COUNT],
}

impl Outbox {
    pub(crate) const fn new() -> Self {
        Self { next: [0; BoxSize::COUNT], ends: [[0; BOXES_MAX]; BoxSize::COUNT] }
    }

    /// The next box of this size.
    #[inline]
    pub(crate) const fn place(&self, size: BoxSize) -> BoxPlace {
        BoxPlace { size, number: self.next[size as usize] }
    }

    /// The box of this size after the next one.
    #[inline]
    pub(crate) const fn later(&self, size: BoxSize) -> BoxPlace {
        self.place(size).next()
    }

    /// Whether the next box of this size is free, if the reader has read to this position.
    #[inline]
    pub(crate) const fn is_free(&self, size: BoxSize, head: u64) -> bool {
        self.ends[size as usize][self.next[size as usize]] <= head
    }

    /// Publishes the message of `len` bytes that was written into the next box of this size.
    #[inline]
    pub(crate) fn post(&mut self, boxes: &FastBoxes, size: BoxSize, end: u64, len: usize, head: u64) {
        let place = self.place(size);
        let header = boxes.header(place);
        header.details.store(details(len as u64, head), Ordering::Relaxed);
        header.end.store(end, Ordering::Release);
        self.ends[size as usize][place.number] = end;
        self.next[size as usize] = place.next().number;
    }
}

/// The side that reads messages from boxes.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// The next box of each size.
    next: [usize; BoxSize::COUNT],
}

impl Inbox {
    pub(crate) const fn new() -> Self {
        Self { next: [0; BoxSize::COUNT] }
    }

    /// The next box of this size.
    #[inline]
    pub(crate) const fn place(&self, size: BoxSize) -> BoxPlace {
        BoxPlace { size, number: self.next[size as usize] }
    }

    /// Whether no message in the next boxes ends after this position.
    #[inline]
    pub(crate) fn is_empty(&self, boxes: &FastBoxes, tail: u64) -> bool {
        let is_read = |size| boxes.header(self.place(size)).end.load(Ordering::Relaxed) <= tail;
        is_read(BoxSize::Tiny) && is_read(BoxSize::Small) && is_read(BoxSize::Large)
    }

    /// The end of the furthest message in the next boxes, also if it was read.
    #[inline]
    pub(crate) fn furthest_end(&self, boxes: &FastBoxes) -> u64 {
        let end = |size| boxes.header(self.place(size)).end.load(Ordering::Acquire);
        end(BoxSize::Tiny).max(end(BoxSize::Small)).max(end(BoxSize::Large))
    }

    /// The message that starts at this position, if it is in one of the next boxes.
    #[inline]
    pub(crate) fn at(&self, boxes: &FastBoxes, head: u64) -> Option<BoxedMessage> {
        let at = |size| self.unread(boxes, size, head).filter(|message| message.start == head);
        at(BoxSize::Tiny).or_else(|| at(BoxSize::Small)).or_else(|| at(BoxSize::Large))
    }

    /// The first message in the next boxes that ends after this position. Its range may be
    /// anything if the peer is broken.
    #[inline]
    pub(crate) fn first(&self, boxes: &FastBoxes, head: u64) -> Option<BoxedMessage> {
        let unread = BoxSize::ALL.map(|size| self.unread(boxes, size, head));
        unread.into_iter().flatten().min_by_key(|message| message.start)
    }

    /// The message in the next box of this size, unless it ends at this position or before.
    #[inline]
    fn unread(&self, boxes: &FastBoxes, size: BoxSize, head: u64) -> Option<BoxedMessage> {
        let place = self.place(size);
        let header = boxes.header(place);
        let end = header.end.load(Ordering::Acquire);
        (end > head).then(|| {
            let details = header.details.load(Ordering::Relaxed);
            let len = (details & LENGTH_MASK).min(size.capacity() as u64).min(end);
            BoxedMessage { place, start: end - len, end, acknowledged: Acknowledged(details >> LENGTH_BITS) }
        })
    }

    /// Takes a message out of its box: the next one of this size is the one after it.
    #[inline]
    pub(crate) const fn take(&mut self, message: &BoxedMessage) {
        self.next[message.place.size as usize] = message.place.next().number;
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_the_places_of_the_format() {
        assert_eq!(BoxSize::ALL.map(BoxSize::capacity), [112, 1136, 4720]);
        assert_eq!((HEADER_BYTES, BOXES), (16, [16, 2, 2]));
        let boxes = FastBoxes::new();
        let offset = |size, number| {
            let (memory, _) = boxes.memory(BoxPlace { size, number });
            memory.addr() - std::ptr::from_ref(&*boxes).addr()
        };
        assert_eq!([0, 1, 15].map(|number| offset(BoxSize::Tiny, number)), [16, 144, 1936]);
        assert_eq!([0, 1].map(|number| offset(BoxSize::Small, number)), [2064, 4240]);
        assert_eq!([0, 1].map(|number| offset(BoxSize::Large, number)), [6416, 11_152]);
        assert_eq!((size_of::<FastBoxes>(), align_of::<FastBoxes>()), (15_872, 128));
        assert_eq!(std::mem::offset_of!(Header, details), 8);
        assert_eq!(std::mem::offset_of!(Pair, bytes), HEADER_BYTES);
        assert_eq!(details(5, 3), (3 << 13) | 5);
    }

    #[test]
    fn a_message_goes_into_the_smallest_box_that_holds_it() {
        for (len, size) in [
            (1, Some(BoxSize::Tiny)),
            (112, Some(BoxSize::Tiny)),
            (113, Some(BoxSize::Small)),
            (1136, Some(BoxSize::Small)),
            (1137, Some(BoxSize::Large)),
            (4720, Some(BoxSize::Large)),
            (4721, None),
            (usize::MAX, None),
        ] {
            assert_eq!(BoxSize::of(len), size, "{len}");
        }
    }

    #[test]
    fn boxes_of_a_size_are_used_in_turn_once_they_are_free() {
        let (boxes, mut outbox, mut inbox) = (FastBoxes::new(), Outbox::new(), Inbox::new());
        for size in BoxSize::ALL {
            for number in 0..100 {
                let start = 1000 * (size as u64 + 1) + 10 * number;
                assert!(outbox.is_free(size, start) && inbox.at(&boxes, start).is_none());
                let place = outbox.place(size);
                outbox.post(&boxes, size, start + 10, 10, number);
                assert_ne!(outbox.place(size), place, "two of a size at least");
                let message = inbox.at(&boxes, start).unwrap();
                assert_eq!((message.place, message.start, message.end), (place, start, start + 10));
                assert_eq!(message.acknowledged.position(200), number);
                assert_eq!(inbox.first(&boxes, start).map(|first| first.start), Some(start));
                inbox.take(&message);
            }
            let count = BOXES[size as usize] as u64;
            let oldest = 1000 * (size as u64 + 1) + 10 * (101 - count);
            assert!(outbox.is_free(size, oldest) && !outbox.is_free(size, oldest - 1), "{size:?}");
        }
    }

    /// A stream may be longer than the bits of a header can count.
    #[test]
    fn positions_are_complete() {
        for published in [0, 1, 5000, 1 << 51, (1 << 51) + 5, (1 << 60) + 77, u64::MAX] {
            for unread in [0, 1, 4096, 1 << 40, (1 << 51) - 1] {
                let Some(head) = published.checked_sub(unread) else { continue };
                let acknowledged = Acknowledged(details(7, head) >> LENGTH_BITS);
                assert_eq!(acknowledged.position(published), head, "{published} {unread}");
            }
            for beyond in [1, 2, 100_000] {
                let acknowledged = Acknowledged(details(7, published.wrapping_add(beyond)) >> LENGTH_BITS);
                assert!(acknowledged.position(published) <= published.saturating_sub((1 << 51) - 100_000));
            }
        }
    }

    #[test]
    fn a_header_that_no_correct_peer_writes_names_no_byte_beyond_its_box() {
        let (boxes, inbox) = (FastBoxes::new(), Inbox::new());
        for (end, len) in [(5, 200), (5, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0), (1 << 63, 1 << 63)] {
            boxes.overwrite(BoxSize::Tiny, 0, end, len, 0);
            let message = inbox.first(&boxes, 0).unwrap();
            assert!(
                message.start <= message.end
                    && message.end - message.start <= BoxSize::Tiny.capacity() as u64,
                "{message:?}"
            );
        }
    }
}

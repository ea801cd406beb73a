//! The positions of the writer and the reader of one ring.
//!
//! Positions count bytes from the start of the stream and never decrease. The writer publishes the
//! position to which it has written (the tail), and the reader the one to which it has read (the
//! head). For a small message in a fast box, the writer does not move the tail: the box contains
//! the position. Such a message has a place in the ring, but its bytes are not there. Each side
//! knows its own position and caches the other's, so that it reads the other's cache line only when
//! it would otherwise have to stop. The peer may publish anything, so positions are validated
//! against the bounds that a correct peer observes.
//!
//! Some bytes of the stream do not go through the ring: a descriptor names their memory. The writer
//! writes a descriptor, then counts it, then moves the tail over its bytes, so that a reader that
//! sees a tail sees every descriptor below it. The position of a byte in the ring is its position
//! in the stream minus the number of earlier bytes that had descriptors.

mod control;
mod reader;

use std::fmt;

use crate::descriptors::{CMA_DESCRIPTORS_MAX, Descriptor, Outstanding};
use crate::fast_boxes::{Acknowledged, BoxSize, FastBoxes, Outbox};
use crate::sync::Ordering;
pub(crate) use control::Control;
pub(crate) use reader::Reader;

/// The error for a position that no correct peer publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidPosition {
    found: u64,
    least: u64,
    most: u64,
}

impl fmt::Display for InvalidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, least, most } = self;
        write!(f, "it published position {found} in a ring where only {least} to {most} are possible")
    }
}

/// Returns a position, or an error if it is before the last one or beyond the furthest possible
/// one.
const fn validate(found: u64, least: u64, most: u64) -> Result<u64, InvalidPosition> {
    if found >= least && found <= most { Ok(found) } else { Err(InvalidPosition { found, least, most }) }
}

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    capacity: u64,
    /// The position to which this side has written.
    tail: u64,
    /// The position that was published last, by the tail or in a box.
    published: u64,
    /// The head of the reader, as far as this side knows.
    head: u64,
    /// The same, in bytes of the ring.
    ring_head: u64,
    /// The head that the reader had published when it was last read: it may have acknowledged more.
    published_head: u64,
    /// The total bytes of all descriptors made so far.
    described: u64,
    /// The value of `described` when descriptors were last published.
    published_descriptors: u64,
    out: Outstanding,
    outbox: Outbox,
    has_boxes: bool,
}

impl Writer {
    pub(crate) const fn new(capacity: usize) -> Self {
        let capacity = capacity as u64;
        Self {
            capacity,
            tail: 0,
            published: 0,
            head: 0,
            ring_head: 0,
            published_head: 0,
            described: 0,
            published_descriptors: 0,
            out: Outstanding::new(),
            outbox: Outbox::new(),
            has_boxes: false,
        }
    }

    /// Returns the position to which this side has written.
    #[inline]
    pub(crate) const fn position(&self) -> u64 {
        self.tail
    }

    /// The position in the ring of the next byte: the bytes that were written into it so far.
    #[inline]
    pub(crate) const fn ring_position(&self) -> u64 {
        self.tail - self.described
    }

    /// The number of bytes that are known to fit, at most the capacity.
    #[inline]
    pub(crate) const fn space(&self) -> usize {
        (self.capacity - (self.ring_position() - self.ring_head)) as usize
    }

    /// Whether another descriptor is known to be free.
    pub(crate) const fn has_free_descriptor(&self) -> bool {
        !self.out.is_full()
    }

    /// Whether another descriptor for cross-memory attach is known to be free; see
    /// [`CMA_DESCRIPTORS_MAX`].
    pub(crate) fn has_free_cma_descriptor(&self) -> bool {
        self.out.iter().count() < CMA_DESCRIPTORS_MAX
    }

    /// The descriptors that are not known to have been read to the end.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = Descriptor> {
        self.out.iter()
    }

    /// Reads the head that the reader has published.
    #[inline]
    pub(crate) fn refresh(&mut self, control: &Control) -> Result<(), InvalidPosition> {
        self.published_head = self.read_head(control)?;
        self.head = self.head.max(self.published_head);
        self.account();
        Ok(())
    }

    fn read_head(&self, control: &Control) -> Result<u64, InvalidPosition> {
        validate(control.read.0.head.load(Ordering::Acquire), self.published_head, self.published)
    }

    /// Moves the head to the position that a message of the reader acknowledges, unless a later one
    /// is known.
    #[inline]
    pub(crate) fn acknowledge(&mut self, acknowledged: Acknowledged) {
        let head = acknowledged.position(self.published);
        if head > self.head {
            self.head = head;
            self.account();
        }
    }

    /// Frees the bytes that the reader has read.
    #[inline]
    fn account(&mut self) {
        self.out.complete(self.head);
        let next = self.out.first().map_or(self.head, |descriptor| descriptor.start.min(self.head));
        self.ring_head = next - self.out.done_bytes();
    }

    /// The position below which the reader has read all bytes that have descriptors.
    #[inline]
    pub(crate) fn released(&self, control: &Control) -> u64 {
        if self.out.first().is_none() {
            return self.tail;
        }
        // The next refresh returns the error for an invalid head.
        let head = self.read_head(control).unwrap_or(0).max(self.head);
        self.out
            .iter()
            .find(|descriptor| descriptor.end() > head && !descriptor.is_put())
            .map_or(self.tail, |descriptor| descriptor.start)
    }

    /// Advances the tail over bytes that were written into the ring.
    pub(crate) const fn advance(&mut self, bytes: usize) {
        self.tail += bytes as u64;
    }

    /// Adds a descriptor of at least one byte. A descriptor must be free.
    pub(crate) fn push_descriptor(&mut self, control: &Control, bytes: usize, region: u64, offset: u64) {
        let descriptor = Descriptor { start: self.tail, len: bytes as u64, region, offset };
        control.slots.put(self.out.made(), descriptor);
        self.out.push(descriptor);
        self.tail += descriptor.len;
        self.described += descriptor.len;
    }

    /// The number of bytes that were written but not published yet.
    #[inline]
    pub(crate) const fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Publishes the written bytes, and returns whether the reader must be notified.
    #[must_use]
    #[inline]
    pub(crate) fn publish(&mut self, control: &Control) -> bool {
        if self.published == self.tail {
            return false;
        }
        if self.described != self.published_descriptors {
            control.written.0.descriptors.store(self.out.made(), Ordering::Release);
        }
        control.written.0.tail.store(self.tail, Ordering::Release);
        (self.published, self.published_descriptors) = (self.tail, self.described);
        control.reader().should_notify()
    }

    /// Whether this side has allocated the boxes.
    #[inline]
    pub(crate) const fn has_boxes(&self) -> bool {
        self.has_boxes
    }

    /// Lets the reader look into the boxes, which were allocated.
    pub(crate) fn open_boxes(&mut self, control: &Control) {
        control.written.0.has_boxes.store(1, Ordering::Release);
        self.has_boxes = true;
    }

    /// The boxes of the next messages.
    pub(crate) const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Whether the next box of this size is known to be free.
    #[inline]
    pub(crate) const fn has_free_box(&self, size: BoxSize) -> bool {
        self.outbox.is_free(size, self.head)
    }

    /// Publishes a message of `len` bytes that was written into the next box of this size, which
    /// must be free, as there must be space for the message. It also tells the reader that this
    /// side has read the other stream up to the position `head`. Returns whether the reader must
    /// be notified.
    #[must_use]
    #[inline]
    pub(crate) fn post(
        &mut self,
        control: &Control,
        boxes: &FastBoxes,
        size: BoxSize,
        len: usize,
        head: u64,
    ) -> bool {
        // What was written before it comes first.
        let is_woken = self.publish(control);
        self.tail += len as u64;
        self.outbox.post(boxes, size, self.tail, len, head);
        self.published = self.tail;
        control.reader().should_notify() || is_woken
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(loom)]
#[cfg(test)]
mod interleavings;

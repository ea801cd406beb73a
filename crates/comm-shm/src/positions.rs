//! The positions of the writer and the reader of one ring.
//!
//! Positions count bytes from the start of the stream and never decrease. The writer publishes the
//! position to which it has written (the tail), and the reader the one to which it has read (the
//! head). After a small message, the writer does not move the tail, but announces the position on a
//! line that the reader polls for this message. Each side knows its own position and caches the
//! other's, so that it reads the other's cache line only when it would otherwise have to stop. The
//! peer may publish anything, so positions are validated against the bounds that a correct peer
//! observes.
//!
//! Some bytes of the stream do not go through the ring: a descriptor names their memory. The writer
//! writes a descriptor, then counts it, then moves the tail over its bytes, so that a reader that
//! sees a tail sees every descriptor below it. The position of a byte in the ring is its position
//! in the stream minus the number of earlier bytes that had descriptors.

mod control;

use std::fmt;

use crate::announcements::{Announcement, INLINE_BYTES_MAX, InlineMessage};
use crate::descriptors::{CMA_DESCRIPTORS_MAX, DESCRIPTORS_MAX, Descriptor, Outstanding};
use crate::sync::Ordering;
pub(crate) use control::Control;

/// The number of times per ring that a busy reader publishes its head. The writer never misses more
/// than one such part of the free space.
const HEAD_UPDATES_PER_RING: u64 = 8;

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
    /// The position that was published or announced last.
    published: u64,
    /// The head of the reader when it was last read.
    head: u64,
    /// The same, in bytes of the ring.
    ring_head: u64,
    /// The total bytes of all descriptors made so far.
    described: u64,
    /// The value of `described` when descriptors were last published.
    published_descriptors: u64,
    out: Outstanding,
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
            described: 0,
            published_descriptors: 0,
            out: Outstanding::new(),
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
        self.head = self.read_head(control)?;
        self.out.complete(self.head);
        let next = self.out.first().map_or(self.head, |descriptor| descriptor.start.min(self.head));
        self.ring_head = next - self.out.done_bytes();
        Ok(())
    }

    fn read_head(&self, control: &Control) -> Result<u64, InvalidPosition> {
        validate(control.read.0.head.load(Ordering::Acquire), self.head, self.published)
    }

    /// The position below which the reader has read all bytes that have descriptors.
    #[inline]
    pub(crate) fn released(&self, control: &Control) -> u64 {
        if self.out.first().is_none() {
            return self.tail;
        }
        // The next refresh returns the error for an invalid head.
        let head = self.read_head(control).unwrap_or(self.head);
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

    /// Announces a small message, which the caller has written, and returns whether the reader must
    /// be notified. The message is also copied onto the line of the announcement if it is short
    /// enough.
    #[must_use]
    #[inline]
    pub(crate) fn announce(
        &mut self,
        control: &Control,
        copy: Option<(&[u8; INLINE_BYTES_MAX], usize)>,
    ) -> bool {
        if self.described != self.published_descriptors {
            return self.publish(control);
        }
        let announcement = control.announcements().of(self.published);
        if let Some((bytes, len)) = copy {
            announcement.copy(bytes, len, self.tail);
        }
        announcement.announce(self.tail);
        self.published = self.tail;
        control.reader().should_notify()
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    capacity: u64,
    /// The position to which this side has read.
    head: u64,
    /// The head that was published last.
    published: u64,
    /// The position to which the writer has written, as far as this side knows.
    tail: u64,
    /// The tail that the writer had published when it was last read: the last announcements may be
    /// beyond it.
    published_tail: u64,
    /// The end of the piece at the head, which is either in the ring, up to the next descriptor, or
    /// the rest of one descriptor.
    limit: u64,
    /// The number of bytes below the head that had descriptors.
    described: u64,
    /// The number of descriptors that were read from their slots.
    descriptors_read: u64,
    /// The current descriptor, unless it was read to the end.
    descriptor: Option<Descriptor>,
}

impl Reader {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity as u64,
            head: 0,
            published: 0,
            tail: 0,
            published_tail: 0,
            limit: 0,
            described: 0,
            descriptors_read: 0,
            descriptor: None,
        }
    }

    /// The position in the ring of the next byte: the bytes that were read from it so far.
    #[inline]
    pub(crate) const fn ring_position(&self) -> u64 {
        self.head - self.described
    }

    /// Returns the position to which this side has read.
    #[inline]
    pub(crate) const fn position(&self) -> u64 {
        self.head
    }

    /// The number of bytes that are known to be available in one piece: at most the capacity in the
    /// ring, and the rest of a descriptor.
    #[inline]
    pub(crate) const fn available(&self) -> usize {
        (self.limit - self.head) as usize
    }

    /// The number of bytes that the writer claims to have written. A broken peer may claim
    /// anything.
    #[inline]
    pub(crate) const fn claimed(&self) -> u64 {
        self.tail - self.head
    }

    /// The rest of the current descriptor, if the next byte has one.
    #[inline]
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        let descriptor = self.descriptor.filter(|descriptor| descriptor.start <= self.head)?;
        let read = self.head - descriptor.start;
        let offset = descriptor.offset.saturating_add(read);
        Some(Descriptor { start: self.head, len: descriptor.len - read, offset, ..descriptor })
    }

    /// Whether a descriptor in a region has not been read to the end yet.
    pub(crate) fn has_unread(&self, control: &Control, region: u64) -> bool {
        let most = self.descriptors_read.saturating_add(DESCRIPTORS_MAX as u64);
        let made = control.written.0.descriptors.load(Ordering::Acquire).min(most);
        let mut waiting = (self.descriptors_read..made).map(|number| control.slots.get(number));
        self.descriptor.is_some_and(|descriptor| descriptor.region == region)
            || waiting.any(|descriptor| descriptor.region == region)
    }

    /// Whether all known bytes were read, and the writer has published none since.
    #[inline]
    pub(crate) fn is_drained(&self, control: &Control) -> bool {
        self.head == self.tail
            && self.next_announcement(control).end(Ordering::Relaxed) <= self.tail
            && control.written.0.tail.load(Ordering::Relaxed) == self.published_tail
    }

    /// The line on which the next message is announced, if it is small.
    #[inline]
    fn next_announcement<'a>(&self, control: &'a Control) -> &'a Announcement {
        control.announcements().of(self.tail)
    }

    /// Receives the next message, if all known bytes were read and it was announced with a copy.
    /// Returns whether it has done so.
    #[inline]
    pub(crate) fn recv_inline(&mut self, control: &Control, inline: &mut InlineMessage) -> bool {
        let announcement = self.next_announcement(control);
        let end = announcement.end(Ordering::Acquire);
        let takes =
            self.descriptor.is_none() && self.head == self.tail && announcement.read(self.head, end, inline);
        if takes {
            (self.tail, self.limit) = (end, end);
        }
        takes
    }

    /// Reads the positions that the writer has published and announced.
    #[inline]
    pub(crate) fn refresh(&mut self, control: &Control) -> Result<(), InvalidPosition> {
        let announced = self.next_announcement(control).end(Ordering::Acquire);
        let published = control.written.0.tail.load(Ordering::Acquire);
        self.take_descriptor(control)?;
        // A stream would have to carry 2^64 bytes for this sum to overflow.
        let full = self.head.saturating_add(self.capacity);
        let most = if self.descriptor.is_none() { full } else { u64::MAX };
        self.published_tail = validate(published, self.published_tail, most)?;
        let tail = validate(self.tail.max(published).max(announced), self.tail, most)?;
        self.limit = match self.descriptor {
            Some(descriptor) if descriptor.start <= self.head => tail.min(descriptor.end()),
            Some(descriptor) => validate(tail.min(descriptor.start), self.head, full)?,
            None => tail,
        };
        self.tail = tail;
        Ok(())
    }

    /// Reads the next descriptor from its slot, if there is one and the current one was read to the
    /// end.
    #[inline]
    fn take_descriptor(&mut self, control: &Control) -> Result<(), InvalidPosition> {
        if self.descriptor.is_some() {
            return Ok(());
        }
        let most = self.descriptors_read.saturating_add(DESCRIPTORS_MAX as u64);
        let made =
            validate(control.written.0.descriptors.load(Ordering::Acquire), self.descriptors_read, most)?;
        if made == self.descriptors_read {
            return Ok(());
        }
        let descriptor = control.slots.get(self.descriptors_read);
        validate(descriptor.start, self.head, u64::MAX)?;
        validate(descriptor.len, 1, u64::MAX - descriptor.start)?;
        self.descriptors_read += 1;
        self.descriptor = Some(descriptor);
        Ok(())
    }

    /// Releases bytes that were read, at most those available. Returns whether the writer must be
    /// notified. The head is published when a descriptor has been read to the end, or enough of the
    /// ring has; [`publish`](Self::publish) publishes smaller amounts.
    #[must_use]
    #[inline]
    pub(crate) fn release(&mut self, bytes: usize, control: &Control) -> bool {
        let bytes = bytes.min(self.available()) as u64;
        if bytes == 0 {
            return false;
        }
        let descriptor = self.descriptor();
        self.head += bytes;
        let Some(descriptor) = descriptor else {
            return self.head - self.published >= self.capacity / HEAD_UPDATES_PER_RING
                && self.publish(control);
        };
        self.described += bytes;
        if bytes < descriptor.len {
            return false;
        }
        self.descriptor = None;
        self.publish(control)
    }

    /// Publishes the head, and returns whether the writer must be notified. A reader that finds
    /// nothing to read calls this: the writer may need the space before it can write more.
    #[must_use]
    #[inline]
    pub(crate) fn publish(&mut self, control: &Control) -> bool {
        if self.published == self.head {
            return false;
        }
        control.read.0.head.store(self.head, Ordering::Release);
        self.published = self.head;
        control.writer().should_notify()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(loom)]
#[cfg(test)]
mod interleavings;

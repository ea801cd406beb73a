//! The side of a ring that reads.

use super::{Control, InvalidPosition, validate};
use crate::descriptors::{DESCRIPTORS_MAX, Descriptor};
use crate::fast_boxes::{Acknowledged, BoxedMessage, FastBoxes, Inbox};
use crate::sync::Ordering;

/// The number of times per ring that a busy reader publishes its head. The writer never misses more
/// than one such part of the free space.
const HEAD_UPDATES_PER_RING: u64 = 8;

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
    /// The tail that the writer had published when it was last read. Messages in boxes may be
    /// beyond it.
    published_tail: u64,
    /// The end of the piece at the head, which is in the ring, up to the next message elsewhere, or
    /// the rest of one descriptor or box.
    limit: u64,
    /// The number of bytes below the head that had descriptors.
    described: u64,
    /// The number of descriptors that were read from their slots.
    descriptors_read: u64,
    /// The current descriptor, unless it was read to the end.
    descriptor: Option<Descriptor>,
    inbox: Inbox,
    /// Whether the writer is known to have allocated the boxes.
    has_boxes: bool,
    /// The message in a box at the head, unless it was read to the end.
    boxed: Option<BoxedMessage>,
    /// The number of messages in boxes that were read since the head was published.
    unpublished_boxes: usize,
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
            inbox: Inbox::new(),
            has_boxes: false,
            boxed: None,
            unpublished_boxes: 0,
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

    /// The message in a box that contains the next byte, if one does.
    #[inline]
    pub(crate) const fn boxed(&self) -> Option<&BoxedMessage> {
        self.boxed.as_ref()
    }

    /// The boxes of the next messages.
    pub(crate) const fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether all known bytes were read, and the writer has published none since.
    #[inline]
    pub(crate) fn is_drained(&self, control: &Control, boxes: &FastBoxes) -> bool {
        let is_known =
            if self.has_boxes { self.inbox.is_empty(boxes, self.tail) } else { !control.has_boxes() };
        is_known
            && self.head == self.tail
            && control.written.0.tail.load(Ordering::Relaxed) == self.published_tail
    }

    /// Takes the next message if all known bytes were read and it is in a box. Returns the position
    /// to which the writer has read the other stream.
    #[inline]
    pub(crate) fn take_boxed(&mut self, boxes: &FastBoxes) -> Option<Acknowledged> {
        if !self.has_boxes || self.descriptor.is_some() || self.head != self.tail {
            return None;
        }
        let message = self.inbox.at(boxes, self.head)?;
        let acknowledged = message.acknowledged;
        self.take(message);
        Some(acknowledged)
    }

    /// Makes a message in a box, at the head, the current piece.
    #[inline]
    fn take(&mut self, message: BoxedMessage) {
        self.inbox.take(&message);
        self.boxed = Some(message);
        self.tail = self.tail.max(message.end);
        self.limit = message.end;
    }

    /// Reads the positions that the writer has published. If the next message is in a box, it
    /// returns the position to which the writer has read the other stream.
    #[inline]
    pub(crate) fn refresh(
        &mut self,
        control: &Control,
        boxes: &FastBoxes,
    ) -> Result<Option<Acknowledged>, InvalidPosition> {
        let published = control.written.0.tail.load(Ordering::Acquire);
        self.has_boxes = self.has_boxes || control.has_boxes();
        let boxed = if self.has_boxes { self.inbox.furthest_end(boxes) } else { 0 };
        self.take_descriptor(control)?;
        // A stream would have to carry 2^64 bytes for this sum to overflow.
        let full = self.head.saturating_add(self.capacity);
        let most = if self.descriptor.is_none() { full } else { u64::MAX };
        self.published_tail = validate(published, self.published_tail, most)?;
        let tail = validate(self.tail.max(published).max(boxed), self.tail, most)?;
        if self.boxed.is_some() {
            self.tail = tail;
            return Ok(None);
        }
        // All messages in boxes before that tail are visible now.
        let next = self.has_boxes.then(|| self.inbox.first(boxes, self.head)).flatten();
        let next = next.filter(|message| message.start < tail);
        let descriptor = self.descriptor.map(|descriptor| (descriptor.start, descriptor.end()));
        let least = descriptor.filter(|(start, _)| *start <= self.head).map_or(self.head, |(_, end)| end);
        let until = match next {
            Some(message) => validate(message.start, least, tail)?,
            None => tail,
        };
        let taken = next.filter(|message| message.start == self.head);
        self.limit = match descriptor {
            Some((start, end)) if start <= self.head => until.min(end),
            Some((start, _)) => {
                validate(taken.map_or(self.head, |message| message.end), self.head, start)?;
                validate(until.min(start), self.head, full)?
            }
            None => until,
        };
        self.tail = tail;
        let acknowledged = taken.as_ref().map(|message| message.acknowledged);
        taken.into_iter().for_each(|message| self.take(message));
        Ok(acknowledged)
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
        let least = self.boxed.as_ref().map_or(self.head, |message| message.end);
        validate(descriptor.start, least, u64::MAX)?;
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
        if let Some(BoxedMessage { end, place, .. }) = &self.boxed {
            let (is_read, boxes) = (self.head >= *end, place.size.until_published());
            return is_read && self.release_boxed(boxes, control);
        }
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

    /// Notes that a message in a box was read. The head is published after this many. Returns
    /// whether the writer must be notified.
    #[inline]
    fn release_boxed(&mut self, until_published: usize, control: &Control) -> bool {
        self.boxed = None;
        self.unpublished_boxes += 1;
        self.unpublished_boxes >= until_published && self.publish(control)
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
        (self.published, self.unpublished_boxes) = (self.head, 0);
        control.writer().should_notify()
    }
}

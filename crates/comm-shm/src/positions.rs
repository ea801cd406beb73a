//! Who has written how far and who has read how far in one ring, on both sides of it.
//!
//! Positions count bytes from the start of the stream and never go back. The writer publishes how far it has written
//! (the tail), the reader how far it has read (the head). Each side knows its own position and remembers the other's
//! as it saw it last, so that it looks at the other's cache line only when it would have to stop otherwise. What it
//! sees there may have been written by anybody, so it is believed only within the bounds that a correct peer keeps.

use std::fmt;

use crate::doze::Doze;
use crate::sync::{AtomicU64, Ordering};

/// Two cache lines, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
struct Line<T>(T);

/// What both sides of a ring share besides its bytes. All zeros is a ring that nobody has used.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
    reader: Line<Doze>,
    writer: Line<Doze>,
}

/// The size of [`Control`] is part of the format.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Control>() == Control::BYTES);

impl Control {
    /// The room that it takes in a segment.
    pub(crate) const BYTES: usize = 512;

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            tail: Line(AtomicU64::new(0)),
            head: Line(AtomicU64::new(0)),
            reader: Line(Doze::new()),
            writer: Line(Doze::new()),
        }
    }

    /// Whether the side that reads sleeps.
    pub(crate) const fn reader(&self) -> &Doze {
        &self.reader.0
    }

    /// Whether the side that writes sleeps.
    pub(crate) const fn writer(&self) -> &Doze {
        &self.writer.0
    }

    /// Does what a broken or hostile peer may do.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, tail: Option<u64>, head: Option<u64>) {
        tail.into_iter().for_each(|tail| self.tail.0.store(tail, Ordering::Relaxed));
        head.into_iter().for_each(|head| self.head.0.store(head, Ordering::Relaxed));
    }
}

/// A position that no correct peer publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Impossible {
    found: u64,
    least: u64,
    most: u64,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, least, most } = self;
        write!(f, "position {found} in a ring where only {least} to {most} can be")
    }
}

/// Believes a position between the one that was seen before and the furthest that is possible.
const fn believe(found: u64, least: u64, most: u64) -> Result<u64, Impossible> {
    if found >= least && found <= most { Ok(found) } else { Err(Impossible { found, least, most }) }
}

/// The side that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    capacity: u64,
    /// How far this side has written.
    tail: u64,
    /// How far of that the other side knows.
    published: u64,
    /// How far the other side had read when we last looked.
    head: u64,
}

impl Writer {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, tail: 0, published: 0, head: 0 }
    }

    /// How far this side has written.
    pub(crate) const fn position(&self) -> u64 {
        self.tail
    }

    /// How many bytes fit as far as is known. Never more than the capacity.
    pub(crate) const fn room(&self) -> usize {
        (self.capacity - (self.tail - self.head)) as usize
    }

    /// Looks how far the other side has read.
    pub(crate) fn look(&mut self, control: &Control) -> Result<(), Impossible> {
        self.head = believe(control.head.0.load(Ordering::Acquire), self.head, self.published)?;
        Ok(())
    }

    /// Takes note of bytes that were written into the room.
    pub(crate) const fn wrote(&mut self, bytes: usize) {
        self.tail += bytes as u64;
    }

    /// How many bytes were written and not yet shown to the other side.
    pub(crate) const fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Shows the other side what was written, and returns whether it must be rung for.
    #[must_use]
    pub(crate) fn publish(&mut self, control: &Control) -> bool {
        if self.published == self.tail {
            return false;
        }
        control.tail.0.store(self.tail, Ordering::Release);
        self.published = self.tail;
        control.reader().rouse()
    }
}

/// The side that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    capacity: u64,
    /// How far this side has read.
    head: u64,
    /// How far the other side had written when we last looked.
    tail: u64,
}

impl Reader {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { capacity: capacity as u64, head: 0, tail: 0 }
    }

    /// How far this side has read.
    pub(crate) const fn position(&self) -> u64 {
        self.head
    }

    /// How many bytes are there as far as is known. Never more than the capacity.
    pub(crate) const fn available(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Looks how far the other side has written.
    pub(crate) fn look(&mut self, control: &Control) -> Result<(), Impossible> {
        // A stream would have to carry 2^64 bytes for this sum to overflow.
        let most = self.head.saturating_add(self.capacity);
        self.tail = believe(control.tail.0.load(Ordering::Acquire), self.tail, most)?;
        Ok(())
    }

    /// Gives back room for bytes that were read, no more than are available. Returns whether the other side must be
    /// rung for.
    #[must_use]
    pub(crate) fn release(&mut self, bytes: usize, control: &Control) -> bool {
        let bytes = bytes.min(self.available()) as u64;
        if bytes == 0 {
            return false;
        }
        self.head += bytes;
        control.head.0.store(self.head, Ordering::Release);
        control.writer().rouse()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(loom)]
#[cfg(test)]
mod interleavings;

//! Descriptors of bytes of a stream that are not in its ring but elsewhere in the writer's memory.

use crate::sync::{AtomicU64, Ordering};

/// The maximum number of outstanding descriptors in one direction.
#[cfg(not(loom))]
pub(crate) const DESCRIPTORS_MAX: usize = 32;
#[cfg(loom)]
pub(crate) const DESCRIPTORS_MAX: usize = 1;

/// The maximum number of outstanding descriptors for cross-memory attach (CMA): enough that the
/// reader always has another one, and few enough that a waiting writer sees progress.
pub(crate) const CMA_DESCRIPTORS_MAX: usize = 4;
/// The maximum number of bytes of a descriptor for cross-memory attach.
pub(crate) const CMA_BYTES_MAX: usize = 256 << 10;

/// The id in a descriptor that names no region: its offset is an address in the writer's process,
/// which is read by cross-memory attach.
pub(crate) const CMA_REGION: u64 = 0;

/// The id in a descriptor of bytes that the writer has put into the reader's window: its offset is
/// that in the window.
pub(crate) const WINDOW: u64 = u64::MAX;

/// A range of the stream and the location of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The position of the first byte in the stream.
    pub(crate) start: u64,
    /// The number of bytes.
    pub(crate) len: u64,
    /// The region of the writer that contains them, [`CMA_REGION`] or [`WINDOW`].
    pub(crate) region: u64,
    /// The offset of the first byte in the region.
    pub(crate) offset: u64,
}

impl Descriptor {
    /// Whether the bytes are read by cross-memory attach.
    pub(crate) const fn is_cma(&self) -> bool {
        self.region == CMA_REGION
    }

    /// Whether the bytes are in the reader's window already.
    pub(crate) const fn is_put(&self) -> bool {
        self.region == WINDOW
    }

    /// The position after the last byte.
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// The descriptors of one direction, stored by its writer: descriptor `n` is in slot `n` modulo
/// [`DESCRIPTORS_MAX`]. All zeros means that none has been stored.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DescriptorSlots([[AtomicU64; 4]; DESCRIPTORS_MAX]);

impl DescriptorSlots {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Stores a descriptor, before its number is published.
    pub(crate) fn put(&self, number: u64, descriptor: Descriptor) {
        let words = [descriptor.start, descriptor.len, descriptor.region, descriptor.offset];
        let slot = &self.0[number as usize % DESCRIPTORS_MAX];
        slot.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    /// Loads a descriptor, whose fields a broken peer may have set to anything.
    pub(crate) fn get(&self, number: u64) -> Descriptor {
        let slot = &self.0[number as usize % DESCRIPTORS_MAX];
        let [start, len, region, offset] = [0, 1, 2, 3].map(|word: usize| slot[word].load(Ordering::Relaxed));
        Descriptor { start, len, region, offset }
    }
}

/// The writer's own record of the descriptors that the reader may still read, which no other
/// process can change.
#[derive(Debug)]
pub(crate) struct Outstanding {
    descriptors: [Descriptor; DESCRIPTORS_MAX],
    /// The number of descriptors made so far.
    made: u64,
    /// The number of these that have been read to the end.
    done: u64,
    /// The total bytes of those that have been read to the end.
    done_bytes: u64,
}

impl Outstanding {
    pub(crate) const fn new() -> Self {
        let none = Descriptor { start: 0, len: 0, region: 0, offset: 0 };
        Self { descriptors: [none; DESCRIPTORS_MAX], made: 0, done: 0, done_bytes: 0 }
    }

    /// The number of descriptors made so far.
    pub(crate) const fn made(&self) -> u64 {
        self.made
    }

    /// The total bytes of the descriptors that have been read to the end.
    pub(crate) const fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.made - self.done >= DESCRIPTORS_MAX as u64
    }

    /// Appends a descriptor. There must be a free slot.
    pub(crate) fn push(&mut self, descriptor: Descriptor) {
        self.descriptors[self.made as usize % DESCRIPTORS_MAX] = descriptor;
        self.made += 1;
    }

    /// Removes the descriptors that end at or before the position up to which the reader has read.
    pub(crate) fn complete(&mut self, head: u64) {
        while let Some(descriptor) = self.first().filter(|descriptor| descriptor.end() <= head) {
            self.done_bytes += descriptor.len;
            self.done += 1;
        }
    }

    /// The descriptor to be read next.
    pub(crate) fn first(&self) -> Option<Descriptor> {
        self.iter().next()
    }

    /// The descriptors that may still be read, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Descriptor> {
        (self.done..self.made).map(|number| self.descriptors[number as usize % DESCRIPTORS_MAX])
    }
}

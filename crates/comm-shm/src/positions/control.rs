//! The shared state of a ring besides its bytes.

use crate::cma::Proof;
use crate::descriptors::{DESCRIPTORS_MAX, DescriptorSlots};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::wakeup::WakeupFlag;
use crate::window::{Window, WindowSlot};

/// A value on two cache lines of its own, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

/// The shared state of a ring besides its bytes. All zeros means an unused ring.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    pub(super) written: CachePadded<WriterShared>,
    pub(super) read: CachePadded<ReaderShared>,
    pub(super) reader: CachePadded<WakeupFlag>,
    pub(super) writer: CachePadded<WriterStatus>,
    pub(super) slots: DescriptorSlots,
}

/// The state that the reader publishes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ReaderShared {
    pub(super) head: AtomicU64,
    /// Nonzero if the reader can read the memory of the writer's process by cross-memory attach.
    pub(super) reads_by_cma: AtomicU32,
    pub(super) window: WindowSlot,
}

/// The state of the writer that the reader needs.
#[derive(Debug)]
#[repr(C)]
pub(super) struct WriterStatus {
    pub(super) wakeup: WakeupFlag,
    pub(super) proof: SharedProof,
}

/// A number in the memory of the writer's process. A reader that finds it at its address knows that
/// it reads the memory of the right process.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedProof {
    pub(super) address: AtomicU64,
    pub(super) number: AtomicU64,
}

/// The state that the writer publishes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct WriterShared {
    /// The end of the last bytes that are not in a box.
    pub(super) tail: AtomicU64,
    /// The number of descriptors made so far.
    pub(super) descriptors: AtomicU64,
    /// Nonzero once descriptors that were not read have been revoked.
    pub(super) revoked: AtomicU32,
    /// Nonzero while the writer may write into the window of the reader.
    pub(super) is_putting: AtomicU32,
    /// One more than the number of the processor on which the writer was last seen; zero if it has
    /// shown none.
    pub(super) processor: AtomicU32,
    /// Nonzero once the writer has allocated the boxes.
    pub(super) has_boxes: AtomicU32,
}

const fn processor_mark(processor: usize) -> u32 {
    (processor as u32).wrapping_add(1)
}

/// The size of [`Control`] is part of the format.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Control>() == Control::BYTES);

impl Control {
    /// The size in a segment.
    pub(crate) const BYTES: usize = 512 + 32 * DESCRIPTORS_MAX;

    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            written: CachePadded(WriterShared {
                tail: AtomicU64::new(0),
                descriptors: AtomicU64::new(0),
                revoked: AtomicU32::new(0),
                is_putting: AtomicU32::new(0),
                processor: AtomicU32::new(0),
                has_boxes: AtomicU32::new(0),
            }),
            read: CachePadded(ReaderShared {
                head: AtomicU64::new(0),
                reads_by_cma: AtomicU32::new(0),
                window: WindowSlot::new(),
            }),
            reader: CachePadded(WakeupFlag::new()),
            writer: CachePadded(WriterStatus {
                wakeup: WakeupFlag::new(),
                proof: SharedProof { address: AtomicU64::new(0), number: AtomicU64::new(0) },
            }),
            slots: DescriptorSlots::new(),
        }
    }

    /// The wakeup flag of the reader.
    #[inline]
    pub(crate) const fn reader(&self) -> &WakeupFlag {
        &self.reader.0
    }

    /// The wakeup flag of the writer.
    #[inline]
    pub(crate) const fn writer(&self) -> &WakeupFlag {
        &self.writer.0.wakeup
    }

    /// Publishes the address of a number in this process, for the reader to find it there.
    pub(crate) fn prove(&self, proof: Proof) {
        let place = &self.writer.0.proof;
        place.number.store(proof.number, Ordering::Relaxed);
        place.address.store(proof.address, Ordering::Release);
    }

    /// The number that the writer claims to have in its memory, and its address.
    pub(crate) fn proof(&self) -> Proof {
        let place = &self.writer.0.proof;
        let address = place.address.load(Ordering::Acquire);
        Proof { address, number: place.number.load(Ordering::Relaxed) }
    }

    /// Announces that this side, the reader, can read the memory of the writer's process by
    /// cross-memory attach.
    pub(crate) fn set_reads_by_cma(&self) {
        self.read.0.reads_by_cma.store(1, Ordering::Release);
    }

    /// Whether the reader can read the memory of the writer's process by cross-memory attach.
    #[inline]
    pub(crate) fn reads_by_cma(&self) -> bool {
        self.read.0.reads_by_cma.load(Ordering::Acquire) != 0
    }

    /// Whether the writer has allocated the boxes. Check it after reading the tail.
    #[inline]
    pub(super) fn has_boxes(&self) -> bool {
        self.written.0.has_boxes.load(Ordering::Acquire) != 0
    }

    /// Revokes the descriptors that have not been read. Their memory may be written to afterwards.
    pub(crate) fn revoke(&self) {
        self.written.0.revoked.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether descriptors were revoked. Check it after reading: what was read is valid only if
    /// none were.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        fence(Ordering::SeqCst);
        self.written.0.revoked.load(Ordering::Relaxed) != 0
    }

    /// Lets the writer put bytes into a window of the reader.
    pub(crate) fn open_window(&self, window: Window) {
        self.read.0.window.open(window);
    }

    /// Closes the window. Returns whether the writer may still be writing into it.
    pub(crate) fn close_window(&self) -> bool {
        self.read.0.window.close();
        fence(Ordering::SeqCst);
        self.written.0.is_putting.load(Ordering::Acquire) != 0
    }

    /// The window of the reader for a call.
    #[inline]
    pub(crate) fn window(&self, call: u64) -> Option<Window> {
        self.read.0.window.get(call)
    }

    /// Announces that the writer is about to look for a window, and to write into it.
    pub(crate) fn begin_put(&self) {
        self.written.0.is_putting.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Writes into a window if it is open for this call. Returns whether it did.
    pub(crate) fn put(&self, call: u64, write: impl FnOnce() -> bool) -> bool {
        self.begin_put();
        let has_put = self.window(call).is_some() && write();
        self.written.0.is_putting.store(0, Ordering::Release);
        has_put
    }

    /// Shows the reader on which processor the writer is.
    pub(crate) fn show_processor(&self, processor: usize) {
        let shown = processor_mark(processor);
        let place = &self.written.0.processor;
        if place.load(Ordering::Relaxed) != shown {
            place.store(shown, Ordering::Relaxed);
        }
    }

    /// Whether the writer was last seen on this processor, or on none.
    pub(crate) fn may_be_on(&self, processor: usize) -> bool {
        [0, processor_mark(processor)].contains(&self.written.0.processor.load(Ordering::Relaxed))
    }

    /// Writes as a broken or hostile peer may.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn overwrite_descriptor(
        &self,
        number: u64,
        descriptor: crate::descriptors::Descriptor,
        descriptors: u64,
    ) {
        self.slots.put(number, descriptor);
        self.written.0.descriptors.store(descriptors, Ordering::Release);
    }

    /// Writes as a broken or hostile peer may.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn overwrite(&self, tail: Option<u64>, head: Option<u64>) {
        tail.into_iter().for_each(|tail| self.written.0.tail.store(tail, Ordering::Relaxed));
        head.into_iter().for_each(|head| self.read.0.head.store(head, Ordering::Relaxed));
    }
}

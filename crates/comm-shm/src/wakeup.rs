//! Flags in shared memory that show one side of a ring that the other is asleep.
//!
//! This is Dekker's algorithm: the sleeper sets its flag and then checks the positions again; the
//! other side moves a position and then checks the flag. A full fence between the two steps on each
//! side ensures that at least one of them sees what the other did, so loads and stores around the
//! fence may be relaxed.
//!
//! Positions move far more often than a side goes to sleep. So a sleeper may announce that it
//! executes the fence on both sides with `membarrier(2)`, and the other side then leaves its own
//! out.

use std::io;
use std::sync::atomic::compiler_fence;

use crate::membarrier;
use crate::sync::{self, AtomicU32, Ordering};

/// Whether one side of a ring sleeps. All zeros means that it is awake and fences only on its own
/// side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WakeupFlag {
    is_asleep: AtomicU32,
    uses_membarrier: AtomicU32,
}

impl WakeupFlag {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self { is_asleep: AtomicU32::new(0), uses_membarrier: AtomicU32::new(0) }
    }

    /// Announces whether this side's [`fence`] is executed on both sides.
    pub(crate) fn announce_membarrier(&self) {
        self.uses_membarrier.store(u32::from(membarrier::is_available()), Ordering::Relaxed);
    }

    /// Sets the flag before this side sleeps. It must call [`fence`] and check the positions
    /// again before it does.
    pub(crate) fn prepare_sleep(&self) {
        // Not a store: loom does not order a store after the other side's swap, even if that swap
        // read an earlier store of this side.
        self.is_asleep.swap(1, Ordering::Relaxed);
    }

    /// Clears the flag: this side is awake. The other side may still be about to notify it.
    pub(crate) fn clear(&self) {
        self.is_asleep.store(0, Ordering::Relaxed);
    }

    /// Whether the other side sleeps and must be notified, at most once per sleep. It must be
    /// called each time a position has moved.
    #[inline]
    pub(crate) fn should_notify(&self) -> bool {
        if membarrier::is_available() && self.uses_membarrier.load(Ordering::Relaxed) != 0 {
            compiler_fence(Ordering::SeqCst);
        } else {
            sync::fence(Ordering::SeqCst);
        }
        self.is_asleep.load(Ordering::Relaxed) != 0 && self.is_asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Writes as a broken or hostile peer may.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn overwrite(&self, value: u32) {
        self.is_asleep.store(value, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_set(&self) -> bool {
        self.is_asleep.load(Ordering::Relaxed) != 0
    }
}

/// The fence between setting a flag and the last check of the positions. It is executed on both
/// sides if that was [announced](WakeupFlag::announce_membarrier).
pub(crate) fn fence() -> io::Result<()> {
    if membarrier::is_available() {
        return membarrier::fence();
    }
    sync::fence(Ordering::SeqCst);
    Ok(())
}

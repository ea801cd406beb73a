//! How one side of a ring tells the other that it sleeps, so that nobody who is awake is rung for.
//!
//! It is Dekker's exchange: the sleeper says that it sleeps and then looks at the positions once more, the other side
//! moves a position and then looks whether somebody sleeps. The full fence between the two in either order sees to it
//! that at least one of them sees what the other did. Loads and stores on either side of the fence may be relaxed.

use crate::sync::{AtomicU32, Ordering, fence};

/// Whether one side of a ring sleeps. All zeros says that it does not.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Doze(AtomicU32);

impl Doze {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Says that this side is about to sleep. It must call [`settle`] and then look once more before it does.
    pub(crate) fn lie_down(&self) {
        // Not a store: loom does not know that one comes after the other side's swap if that swap read what this side
        // had stored before.
        self.0.swap(1, Ordering::Relaxed);
    }

    /// Says that this side is awake. The other side may ring all the same, if it is just about to.
    pub(crate) fn get_up(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether this side must now be rung for, because it sleeps. To be asked by the other side each time after it
    /// has moved a position. Says so once per sleep.
    #[inline]
    pub(crate) fn rouse(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }

    /// Does what a broken or hostile peer may do.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_lying(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Stands between lying down and the last look.
pub(crate) fn settle() {
    fence(Ordering::SeqCst);
}

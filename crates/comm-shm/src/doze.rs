//! How one side of a ring tells the other that it sleeps, so that nobody who is awake is rung for.
//!
//! It is Dekker's exchange: the sleeper says that it sleeps and then looks at the positions once more, the other side
//! moves a position and then looks whether somebody sleeps. The full fence between the two in either order sees to it
//! that at least one of them sees what the other did. Loads and stores on either side of the fence may be relaxed.
//!
//! Positions move far more often than somebody goes to sleep. So a sleeper may promise to have the fence executed on both
//! sides, wherever the other one is just then, and the other side then leaves its own out.

use std::io;
use std::sync::atomic::compiler_fence;

use crate::everywhere;
use crate::sync::{AtomicU32, Ordering, fence};

/// Whether one side of a ring sleeps. All zeros says that it does not, and that it has promised nothing.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Doze {
    asleep: AtomicU32,
    promised: AtomicU32,
}

impl Doze {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicU32::new(0), promised: AtomicU32::new(0) }
    }

    /// Promises that this side has both sides execute the fence when it [`settle`]s, if it can.
    pub(crate) fn promise(&self) {
        self.promised.store(u32::from(everywhere::is_there()), Ordering::Relaxed);
    }

    /// Says that this side is about to sleep. It must call [`settle`] and then look once more before it does.
    pub(crate) fn lie_down(&self) {
        // Not a store: loom does not know that one comes after the other side's swap if that swap read what this side
        // had stored before.
        self.asleep.swap(1, Ordering::Relaxed);
    }

    /// Says that this side is awake. The other side may ring all the same, if it is just about to.
    pub(crate) fn get_up(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// Whether this side must now be rung for, because it sleeps. To be asked by the other side each time after it
    /// has moved a position. Says so once per sleep.
    #[inline]
    pub(crate) fn rouse(&self) -> bool {
        if everywhere::is_there() && self.promised.load(Ordering::Relaxed) != 0 {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Does what a broken or hostile peer may do.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn scribble(&self, value: u32) {
        self.asleep.store(value, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_lying(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) != 0
    }
}

/// Stands between lying down and the last look. Keeps what was [promised](Doze::promise).
pub(crate) fn settle() -> io::Result<()> {
    if everywhere::is_there() {
        return everywhere::fence();
    }
    fence(Ordering::SeqCst);
    Ok(())
}

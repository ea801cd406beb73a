//! Windows: memory of one rank into which its peers write the results that it receives.
//!
//! The owner opens a window for a call, and peers write into it in that call only. If the call
//! fails, it closes the window; should a peer be writing at that moment, the owner replaces its
//! pages, so that the peer writes to pages that nobody uses any more.

use std::ops::Range;
use std::sync::Arc;

use crate::region::Region;
use crate::sync::{AtomicU64, Ordering};

/// The memory of a window, as its owner describes it to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The call in which peers may write.
    pub(crate) call: u64,
    /// The region that contains it.
    pub(crate) region: u64,
    /// Its offset in the region.
    pub(crate) start: u64,
    /// The number of bytes.
    pub(crate) len: u64,
}

/// The way in which the next bytes get into a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// This many are sent: they lie on a page that may also hold other data of the owner.
    Sent(usize),
    /// This many are written at an offset in the region.
    Put { at: u64, len: usize },
}

/// Returns the pages, as a range of bytes, that lie wholly in a range.
pub(crate) fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let page = rustix::param::page_size() as u64;
    range.start.checked_next_multiple_of(page).unwrap_or(u64::MAX)..range.end / page * page
}

impl Window {
    /// Returns the way in which the first of `len` bytes at an offset get into the window, or
    /// `None` if it does not contain them.
    pub(crate) fn way(&self, offset: usize, len: usize) -> Option<Way> {
        let (offset, len) = (offset as u64, len as u64);
        offset.checked_add(len).filter(|end| *end <= self.len)?;
        let (end, at) = (self.start.checked_add(self.len)?, self.start + offset);
        let pages = whole_pages(&(self.start..end));
        Some(if at < pages.start || at >= pages.end {
            let until = if at < pages.start { pages.start } else { end };
            Way::Sent(len.min(until - at) as usize)
        } else {
            Way::Put { at, len: len.min(pages.end - at) as usize }
        })
    }
}

/// A window in shared memory, which its owner writes. All zeros means that none is open.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WindowSlot {
    /// The number of the call plus one; zero if no window is open.
    call: AtomicU64,
    region: AtomicU64,
    start: AtomicU64,
    len: AtomicU64,
}

impl WindowSlot {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let [call, region, start, len] = [(); 4].map(|()| AtomicU64::new(0));
        Self { call, region, start, len }
    }

    pub(crate) fn open(&self, window: Window) {
        self.region.store(window.region, Ordering::Relaxed);
        self.start.store(window.start, Ordering::Relaxed);
        self.len.store(window.len, Ordering::Relaxed);
        self.call.store(window.call.saturating_add(1), Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.call.store(0, Ordering::Relaxed);
    }

    /// Returns the window for a call. Its owner opens none for the next call before this side has
    /// finished this one, so what is returned is of one window.
    #[inline]
    pub(crate) fn get(&self, call: u64) -> Option<Window> {
        if self.call.load(Ordering::Acquire) != call.checked_add(1)? {
            return None;
        }
        let [region, start, len] =
            [&self.region, &self.start, &self.len].map(|field| field.load(Ordering::Relaxed));
        Some(Window { call, region, start, len })
    }
}

/// A window of this rank.
#[derive(Debug)]
pub(crate) struct OwnWindow {
    pub(crate) region: Arc<Region>,
    pub(crate) window: Window,
}

impl OwnWindow {
    /// Replaces the pages into which peers write by a copy, which only this process has.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn detach(&self) -> std::io::Result<()> {
        let Window { start, len, .. } = self.window;
        let pages = whole_pages(&(start..start + len));
        self.region.detach(pages.start as usize..pages.end as usize)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_a_window_are_written() {
        let page = rustix::param::page_size();
        let window =
            |start: usize, len: usize| Window { call: 1, region: 1, start: start as u64, len: len as u64 };
        let put = |at: usize, len| Some(Way::Put { at: at as u64, len });
        let all = window(0, 3 * page);
        assert_eq!(all.way(0, 3 * page), put(0, 3 * page));
        assert_eq!(all.way(page + 3, 5), put(page + 3, 5));
        assert_eq!(all.way(3 * page - 1, 2), None);
        assert_eq!(all.way(usize::MAX, 2), None);
        let some = window(page - 4, 2 * page);
        assert_eq!(some.way(0, 2 * page), Some(Way::Sent(4)));
        assert_eq!(some.way(1, 2), Some(Way::Sent(2)));
        assert_eq!(some.way(4, 2 * page - 4), put(page, page));
        assert_eq!(some.way(page, page), put(2 * page - 4, 4));
        assert_eq!(some.way(page + 4, page - 4), Some(Way::Sent(page - 4)));
        let none = window(1, page);
        assert_eq!(none.way(0, page), Some(Way::Sent(page - 1)));
        assert_eq!(none.way(page - 1, 1), Some(Way::Sent(1)));
        assert_eq!(Window { start: u64::MAX, ..window(0, page) }.way(0, 1), None);
    }

    #[test]
    fn a_window_is_open_for_one_call() {
        let (slot, window) = (WindowSlot::new(), Window { call: 7, region: 1, start: 2, len: 3 });
        assert_eq!([0, 7, u64::MAX].map(|call| slot.get(call)), [None; 3]);
        slot.open(window);
        assert_eq!([6, 7, 8].map(|call| slot.get(call)), [None, Some(window), None]);
        slot.close();
        assert_eq!(slot.get(7), None);
    }
}

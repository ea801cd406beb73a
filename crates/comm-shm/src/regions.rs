//! The regions of this rank, which its peers read in place.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use comm_core::{Allocation, Process};

use crate::heap;
use crate::preload::{self, FindSegment};
use crate::region::{PeerAccess, Region};
use crate::window::{OwnWindow, Window, whole_pages};

/// Returns a new id for a region of this process, for the channels of all its fabrics.
pub(crate) fn next_region_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The regions of this rank, by address, for the channels of all its groups.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_address: RwLock<BTreeMap<usize, Entry>>,
    /// The number of allocated regions. While there are none, which is common, a search takes no
    /// lock: a thread that has memory in a region also sees that the region was counted.
    count: AtomicUsize,
    /// The size of the smallest piece of memory of [`Heap`](crate::Heap) that is read in place.
    heap_piece_min: usize,
    /// Finds memory of `libcomm_heap.so`, if it is loaded.
    find_preloaded: Option<FindSegment>,
}

/// A region that contains a piece.
#[derive(Debug)]
pub(crate) enum FoundRegion<'piece> {
    Allocated(Arc<Region>),
    /// A segment of the heap, which lives at least as long as the piece.
    Heap {
        id: u64,
        file: BorrowedFd<'piece>,
    },
}

impl FoundRegion<'_> {
    /// The id under which peers know it.
    pub(crate) fn id(&self) -> u64 {
        match self {
            Self::Allocated(region) => region.id(),
            Self::Heap { id, .. } => *id,
        }
    }

    /// The owner, if the region is dropped with one allocation.
    pub(crate) fn owner(&self) -> Option<Weak<Region>> {
        match self {
            Self::Allocated(region) => Some(Arc::downgrade(region)),
            Self::Heap { .. } => None,
        }
    }
}

impl AsFd for FoundRegion<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Allocated(region) => region.file(),
            Self::Heap { file, .. } => *file,
        }
    }
}

#[derive(Debug)]
struct Entry {
    region: Arc<Region>,
    /// The size of the smallest piece of it that is read in place.
    piece_min: usize,
}

impl Regions {
    /// Creates an empty set of regions. Pieces of the heap are read in place if they have at least
    /// `heap_piece_min` bytes.
    pub(crate) fn new(heap_piece_min: usize) -> Self {
        Self { heap_piece_min, find_preloaded: preload::find_segment(), ..Self::default() }
    }

    /// Changes the regions.
    fn update<R>(&self, change: impl FnOnce(&mut BTreeMap<usize, Entry>) -> R) -> R {
        let mut by_address = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut by_address);
        self.count.store(by_address.len(), Ordering::Relaxed);
        result
    }

    /// Allocates memory that peers read in place, in pieces of at least `piece_min` bytes, or also
    /// write, until it is dropped.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub(crate) fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        piece_min: usize,
        peers: PeerAccess,
    ) -> io::Result<Allocation> {
        let region = Arc::new(Region::create(next_region_id(), bytes, peers)?);
        tracing::debug!(bytes, "allocated a buffer that other ranks can read");
        let owner = RegionOwner {
            region: Arc::clone(&region),
            regions: Arc::clone(self),
            process: Process::current(),
        };
        let allocation = region.allocation(bytes, Box::new(owner));
        self.update(|by_address| by_address.insert(region.address(), Entry { region, piece_min }));
        Ok(allocation)
    }

    /// Returns the region that contains all of these bytes and their offset in it, if they are
    /// enough to be read in place.
    pub(crate) fn find<'piece>(&self, bytes: &'piece [u8]) -> Option<(FoundRegion<'piece>, u64)> {
        if bytes.len() >= self.heap_piece_min {
            let preloaded = || preload::find_in(self.find_preloaded?, bytes);
            if let Some(found) = heap::find(bytes).or_else(preloaded) {
                return Some(found);
            }
        }
        let (region, offset) = self.find_allocated(bytes)?;
        Some((FoundRegion::Allocated(region), offset))
    }

    #[inline]
    fn find_allocated(&self, bytes: &[u8]) -> Option<(Arc<Region>, u64)> {
        if self.count.load(Ordering::Relaxed) == 0 { None } else { self.find_in_map(bytes) }
    }

    fn find_in_map(&self, bytes: &[u8]) -> Option<(Arc<Region>, u64)> {
        let by_address = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let address = bytes.as_ptr().addr();
        let (start, Entry { region, piece_min }) = by_address.range(..=address).next_back()?;
        let offset = address - start;
        let is_within = offset.checked_add(bytes.len())? <= region.len();
        let is_used = is_within && bytes.len() >= *piece_min && !region.is_detached();
        is_used.then(|| (Arc::clone(region), offset as u64))
    }

    /// Returns these bytes as a window for a call, if peers can write to a page of them.
    pub(crate) fn find_window(&self, bytes: &[u8], call: u64) -> Option<OwnWindow> {
        let (region, start) = self.find_allocated(bytes).filter(|(region, _)| region.is_writable())?;
        let window = Window { call, region: region.id(), start, len: bytes.len() as u64 };
        (!whole_pages(&(start..start + window.len)).is_empty()).then_some(OwnWindow { region, window })
    }
}

/// Removes a region when its allocation is dropped.
#[derive(Debug)]
struct RegionOwner {
    region: Arc<Region>,
    regions: Arc<Regions>,
    process: Process,
}

impl Drop for RegionOwner {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // This is a forked child: peers of the parent still read this memory.
            return;
        }
        self.region.retire();
        let removed = self.regions.update(|by_address| by_address.remove(&self.region.address()));
        drop(removed);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_wholly_in_a_region_are_found() {
        let regions = Arc::<Regions>::default();
        let page = rustix::param::page_size();
        let [first, second] =
            [10 * page, page].map(|bytes| regions.allocate(bytes, 1, PeerAccess::Read).unwrap());
        let elsewhere = vec![0; page];
        let id = |bytes| regions.find(bytes).unwrap().0.id();
        let found = |bytes| regions.find(bytes).map(|(region, offset)| (region.id(), offset));
        let [first_id, second_id] = [first.bytes(), second.bytes()].map(id);
        assert_ne!(first_id, second_id);
        assert_eq!(found(first.bytes()), Some((first_id, 0)));
        assert_eq!(found(&first.bytes()[5..page]), Some((first_id, 5)));
        assert_eq!(found(&second.bytes()[page - 1..]), Some((second_id, page as u64 - 1)));
        assert_eq!(found(&elsewhere), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn pieces_are_found_from_the_minimum_size_of_their_region() {
        let regions = Arc::<Regions>::default();
        let [small, large] =
            [1, 50].map(|piece_min| regions.allocate(100, piece_min, PeerAccess::Read).unwrap());
        let is_found = |bytes| regions.find(bytes).is_some();
        assert!(is_found(&small.bytes()[..1]) && is_found(&small.bytes()[3..53]));
        assert!(!is_found(&large.bytes()[..49]) && is_found(&large.bytes()[3..53]));
    }

    #[test]
    fn a_dropped_allocation_is_removed() {
        let regions = Arc::<Regions>::default();
        let allocation = regions.allocate(100, 1, PeerAccess::Read).unwrap();
        let region = regions.find(allocation.bytes()).unwrap().0.owner().unwrap();
        drop(allocation);
        assert!(region.upgrade().is_none() && regions.by_address.read().unwrap().is_empty());
        assert_eq!(regions.count.load(Ordering::Relaxed), 0, "or later searches would take the lock");
    }
}

//! The regions of this rank, which its peers read in place.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use comm_core::{Allocation, Process};

use crate::region::Region;

/// The regions of this rank, by address, for the channels of all its groups.
#[derive(Debug, Default)]
pub(crate) struct Regions(RwLock<RegionsState>);

#[derive(Debug, Default)]
struct RegionsState {
    by_address: BTreeMap<usize, Entry>,
    /// The number of regions created so far, which is the id of the last one.
    made: u64,
}

#[derive(Debug)]
struct Entry {
    region: Arc<Region>,
    /// The size of the smallest piece of it that is read in place.
    piece_min: usize,
}

impl Regions {
    fn write(&self) -> RwLockWriteGuard<'_, RegionsState> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory that peers read in place, in pieces of at least `piece_min` bytes, until it
    /// is dropped.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize, piece_min: usize) -> io::Result<Allocation> {
        let id = {
            let mut state = self.write();
            state.made += 1;
            state.made
        };
        let region = Arc::new(Region::create(id, bytes)?);
        let owner = RegionOwner {
            region: Arc::clone(&region),
            regions: Arc::clone(self),
            process: Process::current(),
        };
        let allocation = region.allocation(bytes, Box::new(owner));
        self.write().by_address.insert(region.address(), Entry { region, piece_min });
        Ok(allocation)
    }

    /// Returns the region that contains all of these bytes and their offset in it, if they are
    /// enough to be read in place.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(Arc<Region>, u64)> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let address = bytes.as_ptr().addr();
        let (start, Entry { region, piece_min }) = state.by_address.range(..=address).next_back()?;
        let offset = address - start;
        let is_large = offset.checked_add(bytes.len())? <= region.len() && bytes.len() >= *piece_min;
        is_large.then(|| (Arc::clone(region), offset as u64))
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
        let removed = self.regions.write().by_address.remove(&self.region.address());
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
        let [first, second] = [10 * page, page].map(|bytes| regions.allocate(bytes, 1).unwrap());
        let elsewhere = vec![0; page];
        let found = |bytes| regions.find(bytes).map(|(region, offset)| (region.id(), offset));
        assert_eq!(found(first.bytes()), Some((1, 0)));
        assert_eq!(found(&first.bytes()[5..page]), Some((1, 5)));
        assert_eq!(found(&second.bytes()[page - 1..]), Some((2, page as u64 - 1)));
        assert_eq!(found(&elsewhere), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn pieces_are_found_from_the_minimum_size_of_their_region() {
        let regions = Arc::<Regions>::default();
        let [small, large] = [1, 50].map(|piece_min| regions.allocate(100, piece_min).unwrap());
        let is_found = |bytes| regions.find(bytes).is_some();
        assert!(is_found(&small.bytes()[..1]) && is_found(&small.bytes()[3..53]));
        assert!(!is_found(&large.bytes()[..49]) && is_found(&large.bytes()[3..53]));
    }

    #[test]
    fn a_dropped_allocation_is_removed() {
        let regions = Arc::<Regions>::default();
        let allocation = regions.allocate(100, 1).unwrap();
        let region = Arc::downgrade(&regions.find(allocation.bytes()).unwrap().0);
        drop(allocation);
        assert!(region.upgrade().is_none() && regions.0.read().unwrap().by_address.is_empty());
    }
}

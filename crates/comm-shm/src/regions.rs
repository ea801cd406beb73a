//! Which memory of this rank its peers can read in place.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use comm_core::{Allocation, Process};

use crate::region::Region;

/// The regions of this rank, by address, for the lanes of all its groups.
#[derive(Debug, Default)]
pub(crate) struct Regions(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    by_address: BTreeMap<usize, Lendable>,
    /// How many were ever made: no number is used twice.
    made: u64,
}

#[derive(Debug)]
struct Lendable {
    region: Arc<Region>,
    /// The size of the smallest piece of it that is lent.
    piece_min: usize,
}

impl Regions {
    /// Memory that the lanes lend, in pieces of at least `piece_min` bytes, from then on until it is dropped.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize, piece_min: usize) -> io::Result<Allocation> {
        let id = {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            known.made += 1;
            known.made
        };
        let region = Arc::new(Region::create(id, bytes)?);
        let owner = Registered {
            region: Arc::clone(&region),
            regions: Arc::clone(self),
            process: Process::current(),
        };
        let allocation = region.hand_out(bytes, Box::new(owner));
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .by_address
            .insert(region.address(), Lendable { region, piece_min });
        Ok(allocation)
    }

    /// The region in which all of these bytes lie, and where they begin in it, if they are enough to be lent.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(Arc<Region>, u64)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let address = bytes.as_ptr().addr();
        let (start, Lendable { region, piece_min }) = known.by_address.range(..=address).next_back()?;
        let offset = address - start;
        let is_lent = offset.checked_add(bytes.len())? <= region.len() && bytes.len() >= *piece_min;
        is_lent.then(|| (Arc::clone(region), offset as u64))
    }
}

/// Forgets a region when its memory is given back.
#[derive(Debug)]
struct Registered {
    region: Arc<Region>,
    regions: Arc<Regions>,
    process: Process,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // In a child that was forked: the parent, which shares the memory, goes on to lend it.
            return;
        }
        self.region.retire();
        let mut known = self.regions.0.write().unwrap_or_else(PoisonError::into_inner);
        let removed = known.by_address.remove(&self.region.address());
        drop(known);
        drop(removed);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_wholly_in_a_region_is_found() {
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
    fn pieces_are_lent_from_the_size_that_their_memory_says() {
        let regions = Arc::<Regions>::default();
        let [small, large] = [1, 50].map(|piece_min| regions.allocate(100, piece_min).unwrap());
        let lent = |bytes| regions.find(bytes).is_some();
        assert!(lent(&small.bytes()[..1]) && lent(&small.bytes()[3..53]));
        assert!(!lent(&large.bytes()[..49]) && lent(&large.bytes()[3..53]));
    }

    #[test]
    fn memory_that_is_given_back_is_forgotten() {
        let regions = Arc::<Regions>::default();
        let allocation = regions.allocate(100, 1).unwrap();
        let region = Arc::downgrade(&regions.find(allocation.bytes()).unwrap().0);
        drop(allocation);
        assert!(region.upgrade().is_none() && regions.0.read().unwrap().by_address.is_empty());
    }
}

//! A table of the ranks of a group.

use std::ops::{Index, IndexMut, Range};

/// The number of entries that are allocated together, one per bit of a `u64`.
const PAGE: usize = 64;

/// The values of ranks with consecutive numbers.
#[derive(Debug)]
struct Page<T> {
    /// One bit per rank with a value of its own.
    present: u64,
    values: [Option<Box<T>>; PAGE],
}

/// A value per rank of a group. A rank of a large group has to do with few others, so ranks whose
/// value was never changed on its own share one.
#[derive(Debug)]
pub(crate) struct PeerTable<T> {
    size: usize,
    pages: Vec<Option<Box<Page<T>>>>,
    /// The value of all other ranks.
    shared: T,
}

impl<T: Clone> PeerTable<T> {
    /// Creates a table of `size` ranks with equal values.
    pub(crate) fn new(size: usize, value: T) -> Self {
        Self { size, pages: (0..size.div_ceil(PAGE)).map(|_| None).collect(), shared: value }
    }

    /// Returns the value of a rank; `None` if the group has no such rank.
    pub(crate) fn get(&self, rank: usize) -> Option<&T> {
        (rank < self.size).then(|| &self[rank])
    }

    /// Returns the value of a rank, to be changed; `None` if the group has no such rank.
    #[inline]
    pub(crate) fn get_mut(&mut self, rank: usize) -> Option<&mut T> {
        if rank >= self.size {
            return None;
        }
        if self.own(rank).is_none() {
            self.insert(rank);
        }
        self.pages[rank / PAGE].as_mut()?.values[rank % PAGE].as_deref_mut()
    }

    /// Gives a rank a value of its own.
    #[cold]
    fn insert(&mut self, rank: usize) {
        let Page { present, values } = &mut **self.pages[rank / PAGE].get_or_insert_with(Page::empty);
        *present |= 1 << (rank % PAGE);
        values[rank % PAGE] = Some(Box::new(self.shared.clone()));
    }

    /// Returns the ranks with values of their own, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.pages.iter().enumerate().flat_map(|(at, page)| {
            let values = page.iter().flat_map(|page| page.from(0));
            values.map(move |(index, value)| (at * PAGE + index, value))
        })
    }

    /// Returns the first of these ranks with a value of its own that fulfils a condition.
    pub(crate) fn find(&self, ranks: Range<usize>, is_wanted: impl Fn(&T) -> bool) -> Option<usize> {
        let end = ranks.end.min(self.size);
        (ranks.start / PAGE..end.div_ceil(PAGE)).find_map(|at| {
            let first = ranks.start.saturating_sub(at * PAGE);
            let mut values = self.pages[at].as_ref()?.from(first);
            let rank = at * PAGE + values.find(|(_, value)| is_wanted(value))?.0;
            (rank < end).then_some(rank)
        })
    }

    /// Changes the values of all ranks.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut T)) {
        let pages = self.pages.iter_mut().flatten();
        pages.flat_map(|page| page.values.iter_mut()).flatten().for_each(|value| change(value));
        change(&mut self.shared);
    }
}

impl<T> PeerTable<T> {
    /// Returns the value of a rank if it has one of its own.
    #[inline]
    fn own(&self, rank: usize) -> Option<&T> {
        self.pages[rank / PAGE].as_deref()?.values[rank % PAGE].as_deref()
    }
}

impl<T> Page<T> {
    fn empty() -> Box<Self> {
        Box::new(Self { present: 0, values: [const { None }; PAGE] })
    }

    /// Returns the values from this index on, with their indices.
    fn from(&self, first: usize) -> impl Iterator<Item = (usize, &T)> {
        let mut rest = u64::MAX.checked_shl(first as u32).unwrap_or(0) & self.present;
        std::iter::from_fn(move || {
            let index = rest.trailing_zeros() as usize;
            rest &= rest.checked_sub(1)?;
            Some((index, self.values[index].as_deref()?))
        })
    }
}

impl<T> Index<usize> for PeerTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, rank: usize) -> &T {
        self.own(rank).unwrap_or(&self.shared)
    }
}

impl<T: Clone> IndexMut<usize> for PeerTable<T> {
    #[inline]
    fn index_mut(&mut self, rank: usize) -> &mut T {
        let size = self.size;
        #[expect(clippy::panic, reason = "as an index of a slice")]
        self.get_mut(rank).unwrap_or_else(|| panic!("rank {rank} of {size}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_entries_differ_from_the_others() {
        let mut table = PeerTable::new(200, 7);
        (table[3], table[130]) = (1, 2);
        assert_eq!([table[0], table[3], table[64], table[130], table[199]], [7, 1, 7, 2, 7]);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(3, &1), (130, &2)]);
        assert!(table.get_mut(200).is_none());
    }

    #[test]
    fn a_change_of_all_values_includes_those_that_are_changed_on_their_own_later() {
        let mut table = PeerTable::new(100, 7);
        table[3] = 1;
        table.change_all(|value| *value += 10);
        table[99] += 1;
        assert_eq!([table[0], table[3], table[99]], [17, 11, 18]);
    }

    #[test]
    fn a_changed_entry_is_found_in_a_range() {
        let mut table = PeerTable::new(300, 0);
        (table[5], table[6], table[299]) = (1, 2, 2);
        let find = |ranks| table.find(ranks, |value| *value == 2);
        assert_eq!(
            [find(0..300), find(6..7), find(7..299), find(7..900)],
            [Some(6), Some(6), None, Some(299)]
        );
        assert_eq!([find(300..300), find(5..6)], [None, None]);
    }
}

//! A table of the ranks of a group.

use std::ops::{Index, IndexMut, Range};

/// The number of entries that are allocated together.
const PAGE: usize = 64;

/// The values of ranks with consecutive numbers.
type Page<T> = [Option<Box<T>>; PAGE];

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

    /// Returns the value of a rank, to be changed; `None` if the group has no such rank.
    pub(crate) fn get_mut(&mut self, rank: usize) -> Option<&mut T> {
        if rank >= self.size {
            return None;
        }
        let page = self.pages[rank / PAGE].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        Some(page[rank % PAGE].get_or_insert_with(|| Box::new(self.shared.clone())))
    }

    /// Returns the ranks with values of their own, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.pages.iter().enumerate().flat_map(|(at, page)| {
            let values = page.iter().flat_map(|page| page.iter().enumerate());
            values.filter_map(move |(index, value)| Some((at * PAGE + index, value.as_deref()?)))
        })
    }

    /// Returns the first of these ranks with a value of its own that fulfils a condition.
    pub(crate) fn find(&self, ranks: Range<usize>, is_wanted: impl Fn(&T) -> bool) -> Option<usize> {
        let mut rank = ranks.start;
        while rank < ranks.end.min(self.size) {
            let Some(page) = &self.pages[rank / PAGE] else {
                rank = (rank / PAGE + 1) * PAGE;
                continue;
            };
            if page[rank % PAGE].as_deref().is_some_and(&is_wanted) {
                return Some(rank);
            }
            rank += 1;
        }
        None
    }

    /// Changes the values of all ranks.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut T)) {
        let pages = self.pages.iter_mut().flatten();
        pages.flat_map(|page| page.iter_mut()).flatten().for_each(|value| change(value));
        change(&mut self.shared);
    }
}

impl<T> Index<usize> for PeerTable<T> {
    type Output = T;

    fn index(&self, rank: usize) -> &T {
        let page = self.pages[rank / PAGE].as_deref();
        page.and_then(|page| page[rank % PAGE].as_deref()).unwrap_or(&self.shared)
    }
}

impl<T: Clone> IndexMut<usize> for PeerTable<T> {
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

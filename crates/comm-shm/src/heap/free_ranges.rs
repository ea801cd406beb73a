//! Free ranges of addresses.

use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free ranges; the smallest one that suffices is taken first. Ranges that touch are one.
#[derive(Debug)]
pub(super) struct FreeRanges {
    end_by_start: BTreeMap<usize, usize>,
    start_by_len: BTreeSet<(usize, usize)>,
}

impl FreeRanges {
    pub(super) const fn new() -> Self {
        Self { end_by_start: BTreeMap::new(), start_by_len: BTreeSet::new() }
    }

    /// Adds a range that overlaps no free one.
    pub(super) fn insert(&mut self, mut range: Range<usize>) {
        if let Some((&start, &end)) = self.end_by_start.range(..range.start).next_back()
            && end == range.start
        {
            self.remove(start..end);
            range.start = start;
        }
        if let Some(&end) = self.end_by_start.get(&range.end) {
            self.remove(range.end..end);
            range.end = end;
        }
        self.add(range);
    }

    /// Takes a range of this size and alignment out of the smallest free range that contains one.
    pub(super) fn take(&mut self, layout: Layout) -> Option<Range<usize>> {
        let fitting = |&(len, start): &(usize, usize)| {
            let taken = start.checked_next_multiple_of(layout.align())?;
            let end = taken.checked_add(layout.size())?;
            (end <= start + len).then_some((start..start + len, taken..end))
        };
        let (free, taken) = self.start_by_len.range((layout.size(), 0)..).find_map(fitting)?;
        self.split(free, taken.clone());
        Some(taken)
    }

    /// Takes exactly this range. Returns whether it was free.
    pub(super) fn take_exact(&mut self, range: Range<usize>) -> bool {
        let free = self.end_by_start.range(..=range.start).next_back().map(|(&start, &end)| start..end);
        let Some(free) = free.filter(|free| range.end <= free.end) else { return false };
        self.split(free, range);
        true
    }

    /// Removes all free ranges that begin in this one.
    pub(super) fn remove_within(&mut self, range: Range<usize>) {
        while let Some((&start, &end)) = self.end_by_start.range(range.clone()).next() {
            self.remove(start..end);
        }
    }

    /// Replaces a free range by the parts of it before and after `taken`.
    fn split(&mut self, free: Range<usize>, taken: Range<usize>) {
        self.remove(free.clone());
        self.add(free.start..taken.start);
        self.add(taken.end..free.end);
    }

    fn add(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.start_by_len.insert((range.len(), range.start));
            self.end_by_start.insert(range.start, range.end);
        }
    }

    fn remove(&mut self, range: Range<usize>) {
        self.start_by_len.remove(&(range.len(), range.start));
        self.end_by_start.remove(&range.start);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn free(ranges: impl IntoIterator<Item = Range<usize>>) -> FreeRanges {
        let mut free = FreeRanges::new();
        ranges.into_iter().for_each(|range| free.insert(range));
        free
    }

    fn list(free: &FreeRanges) -> Vec<Range<usize>> {
        assert_eq!(free.end_by_start.len(), free.start_by_len.len());
        free.end_by_start.iter().map(|(&start, &end)| start..end).collect()
    }

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(list(&free([0..10, 40..50, 20..30, 10..20])), [0..30, 40..50]);
        assert_eq!(list(&free([20..30, 0..10])), [0..10, 20..30]);
    }

    #[test]
    fn the_smallest_range_that_suffices_is_taken() {
        let mut free = free([0..100, 200..220, 300..310]);
        assert_eq!(free.take(layout(15, 1)), Some(200..215));
        assert_eq!(free.take(layout(11, 1)), Some(0..11));
        assert_eq!(list(&free), [11..100, 215..220, 300..310]);
        assert_eq!(free.take(layout(90, 1)), None);
    }

    #[test]
    fn alignment_leaves_free_ranges_on_both_sides() {
        let mut free = free([3..9, 100..300]);
        assert_eq!(free.take(layout(6, 64)), Some(128..134));
        assert_eq!(list(&free), [3..9, 100..128, 134..300]);
    }

    #[test]
    fn an_exact_range_is_taken_only_if_it_is_wholly_free() {
        let mut free = free([0..10, 20..30, 40..50]);
        assert!(!free.take_exact(5..11) && !free.take_exact(10..12) && !free.take_exact(19..21));
        assert!(free.take_exact(22..30));
        assert_eq!(list(&free), [0..10, 20..22, 40..50]);
        free.remove_within(15..25);
        assert_eq!(list(&free), [0..10, 40..50]);
    }
}

//! The lengths of the blocks of all ranks.

use std::ops::Range;

use crate::{Group, Invalid, Result};

/// The lengths of the blocks of a buffer that has one block per rank.
#[derive(Debug, Clone, Copy)]
pub enum Counts<'a> {
    /// All blocks have the same length.
    Equal,
    /// The lengths in elements, in rank order: MPI's `counts` of the V collectives.
    PerRank(&'a [usize]),
}

impl Counts<'_> {
    /// Returns the range of each rank's block in a buffer of `total` elements, whose length has
    /// been checked.
    pub fn blocks(self, total: usize, ranks: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
        let mut end = 0;
        (0..ranks).map(move |rank| {
            let start = end;
            end += match self {
                Self::Equal => total / ranks,
                Self::PerRank(counts) => counts.get(rank).copied().unwrap_or(0),
            };
            start..end
        })
    }

    /// Checks a buffer of `all` elements for all ranks, in which this rank's block has `own`
    /// elements, if that is known. Returns the count of the call: the length of one block if all
    /// are equal, otherwise the total length of all blocks.
    pub(super) fn check(
        self,
        what: &'static str,
        all: usize,
        own: Option<usize>,
        group: Group,
    ) -> Result<usize> {
        match self {
            Self::Equal => {
                let size = group.size();
                if !all.is_multiple_of(size) {
                    return Err(Invalid::Indivisible { what, got: all, size }.into());
                }
                let count = all / size;
                check_len(what, all, own.unwrap_or(count).saturating_mul(size))?;
                Ok(count)
            }
            Self::PerRank(counts) => {
                let total = total(counts, group)?;
                check_len(what, all, total)?;
                let expected = counts[group.rank()];
                check_len("this rank's share", own.unwrap_or(expected), expected)?;
                Ok(total)
            }
        }
    }

    /// Returns the length of `rank`'s block; blocks of equal length have `count` elements.
    pub(super) fn of(self, rank: usize, count: usize) -> usize {
        match self {
            Self::Equal => count,
            Self::PerRank(counts) => counts[rank],
        }
    }
}

#[inline]
pub(crate) fn check_len(what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Invalid::Length { what, expected, got }.into()) }
}

fn total(counts: &[usize], group: Group) -> Result<usize> {
    check_len("the list of counts", counts.len(), group.size())?;
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
        Invalid::Length { what: "the sum of the counts", expected: usize::MAX, got: usize::MAX }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_in_rank_order() {
        assert!(Counts::Equal.blocks(6, 3).eq([0..2, 2..4, 4..6]));
        assert!(Counts::PerRank(&[3, 0, 2]).blocks(5, 3).eq([0..3, 3..3, 3..5]));
    }
}

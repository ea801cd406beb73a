//! The tree over the ranks that defines the deterministic order of combination.
//!
//! Let `core` be the largest power of two that is not above the number of ranks. The first `folded
//! = 2 (n - core)` ranks form pairs: each even rank is combined with the odd one after it. That
//! leaves `core` *numbers*: number j below `folded / 2` stands for the ranks 2j and 2j + 1, a later
//! one for one rank. Then in round k = 0, 1, ... the numbers that differ only in bit k are
//! combined. This is the order of recursive doubling and of [`ReduceOrder::Deterministic`]: every
//! algorithm that keeps it gives the same bits, for any collective and any length.
//!
//! Operators are bitwise commutative, so only the tree matters and not the order of the two
//! operands. The tree looks the same from every number: if all numbers are replaced by their
//! exclusive OR with one of them, the same numbers are combined in the same rounds. A rank may
//! therefore walk the tree starting from its own number.
//!
//! [`ReduceOrder::Deterministic`]: comm_core::ReduceOrder::Deterministic

use std::ops::Range;

/// The tree of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    core: usize,
    folded: usize,
}

impl Tree {
    pub(super) const fn new(ranks: usize) -> Self {
        let core = 1 << ranks.ilog2();
        Self { core, folded: 2 * (ranks - core) }
    }

    /// Returns the count of numbers, a power of two.
    pub(super) const fn core(self) -> usize {
        self.core
    }

    /// Returns the number of rounds after the fold.
    pub(super) const fn rounds(self) -> usize {
        self.core.ilog2() as usize
    }

    /// Returns whether any ranks form pairs.
    pub(super) const fn folds(self) -> bool {
        self.folded > 0
    }

    /// Returns the number that stands for a rank.
    pub(super) const fn number(self, rank: usize) -> usize {
        if rank < self.folded { rank / 2 } else { rank - self.folded / 2 }
    }

    /// Returns the one or two ranks that a number stands for.
    pub(super) const fn ranks(self, number: usize) -> Range<usize> {
        if number < self.folded / 2 {
            2 * number..2 * number + 2
        } else {
            number + self.folded / 2..number + self.folded / 2 + 1
        }
    }

    /// Returns the rank that holds the sum of a number: the odd one of a pair.
    pub(super) const fn leader(self, number: usize) -> usize {
        self.ranks(number).end - 1
    }

    /// Returns the other rank of a rank's pair.
    pub(super) const fn partner(self, rank: usize) -> Option<usize> {
        if rank < self.folded { Some(rank ^ 1) } else { None }
    }

    /// Returns the rank to which this rank sends its contribution before the rounds, if it does.
    pub(super) const fn folds_into(self, rank: usize) -> Option<usize> {
        if rank < self.folded && rank.is_multiple_of(2) { Some(rank + 1) } else { None }
    }
}

/// Returns the tree of [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) as a
/// list of combinations.
///
/// The combinations are performed in this order. Each combines the partial results of two ranks,
/// and the first of the two keeps the result. The first rank of the last combination has the result
/// of all `ranks` ranks; a single rank has it from the start.
///
/// # Panics
/// Panics if `ranks` is 0.
pub fn combinations(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    let tree = Tree::new(ranks);
    let pairs = (0..tree.folded / 2).map(|pair| (2 * pair + 1, 2 * pair));
    let rounds = (0..tree.rounds()).flat_map(move |round| {
        let first = (0..tree.core).step_by(2 << round);
        first.map(move |number| (tree.leader(number), tree.leader(number | 1 << round)))
    });
    pairs.chain(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the tree as an expression.
    fn text(ranks: usize) -> String {
        let mut parts: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
        let mut last = 0;
        for (into, from) in combinations(ranks) {
            parts[into] = format!("({} {})", parts[into.min(from)], parts[into.max(from)]);
            last = into;
        }
        parts.swap_remove(last)
    }

    #[test]
    fn contributions_are_combined_in_pairs_and_then_bit_by_bit() {
        assert_eq!(text(1), "0");
        assert_eq!(text(2), "(0 1)");
        assert_eq!(text(3), "((0 1) 2)");
        assert_eq!(text(4), "((0 1) (2 3))");
        assert_eq!(text(6), "(((0 1) (2 3)) (4 5))");
        assert_eq!(text(7), "(((0 1) (2 3)) ((4 5) 6))");
        assert_eq!(text(8), "(((0 1) (2 3)) ((4 5) (6 7)))");
    }

    #[test]
    fn every_rank_has_one_number() {
        for ranks in 1..100 {
            let tree = Tree::new(ranks);
            assert!((0..tree.core()).flat_map(|number| tree.ranks(number)).eq(0..ranks));
            for rank in 0..ranks {
                assert!(tree.ranks(tree.number(rank)).contains(&rank));
                assert_eq!(tree.folds_into(rank).unwrap_or(rank), tree.leader(tree.number(rank)));
                assert_eq!(tree.partner(rank).is_some(), tree.ranks(tree.number(rank)).len() == 2);
            }
            assert_eq!(combinations(ranks).count(), ranks - 1);
        }
    }
}

//! The one order of combining: a tree over the ranks.
//!
//! Let `core` be the largest power of two that is not above the number of ranks. The first `folded = 2 (n - core)` ranks
//! form pairs: each even rank is combined with the odd one after it. That leaves `core` *numbers*: number j below
//! `folded / 2` stands for the ranks 2j and 2j + 1, a later one for one rank. Then in round k = 0, 1, ... the numbers
//! that differ in bit k alone are combined. So recursive doubling combines, and whatever keeps this tree has its bits,
//! whichever the collective, the length and the algorithm: the order of [`ReduceOrder::Deterministic`].
//!
//! Operators commute to the bit, so that only the tree matters and not the sides of its nodes. And the tree is the same
//! seen from every number: with all numbers replaced by their exclusive or with one of them, the same numbers are
//! combined in the same rounds. A rank may therefore walk it from itself on.
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

    /// How many numbers there are, a power of two.
    pub(super) const fn core(self) -> usize {
        self.core
    }

    /// How many rounds follow the fold.
    pub(super) const fn rounds(self) -> usize {
        self.core.ilog2() as usize
    }

    /// Whether any ranks form pairs.
    pub(super) const fn folds(self) -> bool {
        self.folded > 0
    }

    /// The number that stands for a rank.
    pub(super) const fn number(self, rank: usize) -> usize {
        if rank < self.folded { rank / 2 } else { rank - self.folded / 2 }
    }

    /// The one or two ranks that a number stands for.
    pub(super) const fn ranks(self, number: usize) -> Range<usize> {
        if number < self.folded / 2 {
            2 * number..2 * number + 2
        } else {
            number + self.folded / 2..number + self.folded / 2 + 1
        }
    }

    /// The rank that speaks for a number: of a pair, the odd one.
    pub(super) const fn speaker(self, number: usize) -> usize {
        self.ranks(number).end - 1
    }

    /// The other rank of a rank's pair.
    pub(super) const fn partner(self, rank: usize) -> Option<usize> {
        if rank < self.folded { Some(rank ^ 1) } else { None }
    }

    /// The rank that speaks for this one, if that is another.
    pub(super) const fn spokesman(self, rank: usize) -> Option<usize> {
        if rank < self.folded && rank.is_multiple_of(2) { Some(rank + 1) } else { None }
    }
}

/// The tree of [`ReduceOrder::Deterministic`](comm_core::ReduceOrder::Deterministic) as the combinations that make it
/// up: in this order, what the first rank of each has come to is combined with what the second has come to, and the
/// first keeps the result. The first rank of the last one has the result of all `ranks` ranks; a rank alone has it
/// from the start.
///
/// # Panics
/// If there are no ranks.
pub fn combinations(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    let tree = Tree::new(ranks);
    let pairs = (0..tree.folded / 2).map(|pair| (2 * pair + 1, 2 * pair));
    let rounds = (0..tree.rounds()).flat_map(move |round| {
        let first = (0..tree.core).step_by(2 << round);
        first.map(move |number| (tree.speaker(number), tree.speaker(number | 1 << round)))
    });
    pairs.chain(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as an expression.
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
    fn pairs_come_first_and_then_bit_after_bit() {
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
                assert_eq!(tree.spokesman(rank).unwrap_or(rank), tree.speaker(tree.number(rank)));
                assert_eq!(tree.partner(rank).is_some(), tree.ranks(tree.number(rank)).len() == 2);
            }
            assert_eq!(combinations(ranks).count(), ranks - 1);
        }
    }
}

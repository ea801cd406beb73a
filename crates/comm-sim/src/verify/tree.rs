//! The order in which contributions are combined.

use crate::random::mix;

/// A tree over all ranks as an ordered list of combinations. Each combines the partial results of
/// two ranks, and stores the result on the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree<'a>(pub &'a [(usize, usize)]);

impl Tree<'_> {
    /// Combines the values of the ranks. `None` if this is not a tree over these ranks.
    pub(crate) fn fold<T>(self, ranks: impl Iterator<Item = T>, combine: impl Fn(T, T) -> T) -> Option<T> {
        let mut values: Vec<Option<T>> = ranks.map(Some).collect();
        for &(into, from) in self.0 {
            let theirs = values.get_mut(from)?.take()?;
            let ours = values.get_mut(into)?;
            *ours = Some(combine(ours.take()?, theirs));
        }
        let mut roots = values.into_iter().flatten();
        roots.next().filter(|_| roots.next().is_none())
    }

    /// Returns the hash of a finished block that was combined in this order. `None` if this is not
    /// a tree over these ranks.
    pub(super) fn hash(self, block: usize, ranks: usize) -> Option<u64> {
        self.fold((0..ranks).map(|rank| leaf(block, rank)), node).map(finished)
    }
}

/// Returns the hash of a rank's contribution to a block.
pub(super) fn leaf(block: usize, rank: usize) -> u64 {
    mix(mix(block as u64 + 1) ^ rank as u64)
}

/// Returns the hash of a combination. It does not depend on the order of the operands, because
/// every operator commutes bit for bit.
pub(super) fn node(a: u64, b: u64) -> u64 {
    mix(a.min(b)).wrapping_mul(3) ^ mix(a.max(b))
}

/// Returns the hash after the end of a reduction.
pub(super) fn finished(tree: u64) -> u64 {
    mix(tree ^ 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tree_over_all_ranks_has_a_hash() {
        let hash = |tree: &[(usize, usize)]| Tree(tree).hash(5, 3);
        assert_eq!(hash(&[(0, 1), (0, 2)]), hash(&[(1, 0), (2, 1)]), "the sides of a node do not matter");
        assert_ne!(hash(&[(0, 1), (0, 2)]), hash(&[(1, 2), (0, 1)]), "its place does");
        assert_ne!(hash(&[(0, 1), (0, 2)]), Tree(&[(0, 1), (0, 2)]).hash(6, 3));
        for wrong in [&[(0, 1)][..], &[(0, 1), (0, 1)], &[(0, 1), (0, 3)], &[(0, 0), (0, 1)]] {
            assert_eq!(hash(wrong), None, "{wrong:?}");
        }
    }
}

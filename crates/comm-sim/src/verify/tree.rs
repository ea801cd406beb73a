//! In which order contributions are combined.

use crate::random::mix;

/// A tree over the ranks, as the combinations that make it up: in this order, what the first rank
/// of each has come to is combined with what the second has come to, and the first keeps the
/// result. It joins all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree<'a>(pub &'a [(usize, usize)]);

impl Tree<'_> {
    /// What the ranks come to. `None` if it is no tree over these ranks.
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

    /// The hash of a finished block that was combined so. `None` if it is no tree over these ranks.
    pub(super) fn hash(self, block: usize, ranks: usize) -> Option<u64> {
        self.fold((0..ranks).map(|rank| leaf(block, rank)), node).map(finished)
    }
}

/// The hash of a rank's contribution to a block.
pub(super) fn leaf(block: usize, rank: usize) -> u64 {
    mix(mix(block as u64 + 1) ^ rank as u64)
}

/// The hash of a combination. The same for both orders of operands: every operator commutes to the
/// bit.
pub(super) fn node(a: u64, b: u64) -> u64 {
    mix(a.min(b)).wrapping_mul(3) ^ mix(a.max(b))
}

/// The hash at the end of a reduction.
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

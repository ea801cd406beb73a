//! Sets of ranks.

use std::sync::Arc;

/// The set of ranks whose contributions are in a value. It is cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contributors(Words);

/// The bits of the set. Small worlds need no allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Words {
    One(u64),
    Many(Arc<[u64]>),
}

const BITS: usize = u64::BITS as usize;

impl Contributors {
    /// Returns the set of one rank, in a world of `ranks`.
    #[must_use]
    pub fn one(rank: usize, ranks: usize) -> Self {
        Self::of(ranks, |at| if at == rank / BITS { 1 << (rank % BITS) } else { 0 })
    }

    /// Returns the set of the first `count` ranks, in a world of `ranks`.
    #[must_use]
    pub fn first(count: usize, ranks: usize) -> Self {
        Self::of(ranks, |at| match count.saturating_sub(at * BITS) {
            BITS.. => u64::MAX,
            count => (1 << count) - 1,
        })
    }

    fn of(ranks: usize, word: impl Fn(usize) -> u64) -> Self {
        if ranks <= BITS {
            return Self(Words::One(word(0)));
        }
        Self(Words::Many((0..ranks.div_ceil(BITS)).map(word).collect()))
    }

    /// Returns the ranks in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Words::One(a), Words::One(b)) => Self(Words::One(a | b)),
            _ => Self(Words::Many(self.words().iter().zip(other.words()).map(|(a, b)| a | b).collect())),
        }
    }

    /// Returns whether no rank is in both sets.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words().iter().zip(other.words()).all(|(a, b)| a & b == 0)
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words().iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|&word| word == 0)
    }

    /// Returns whether a rank is in the set.
    #[must_use]
    pub fn contains(&self, rank: usize) -> bool {
        self.words().get(rank / BITS).is_some_and(|word| word >> (rank % BITS) & 1 == 1)
    }

    fn words(&self) -> &[u64] {
        match &self.0 {
            Words::One(word) => std::slice::from_ref(word),
            Words::Many(words) => words,
        }
    }
}

impl std::fmt::Display for Contributors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = (0..self.words().len() * BITS).filter(|&rank| self.contains(rank));
        f.debug_set().entries(ranks).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_equally_in_small_and_large_worlds() {
        for ranks in [3, 64, 65, 1000] {
            let (first, last) = (Contributors::one(0, ranks), Contributors::one(ranks - 1, ranks));
            assert!(first.is_disjoint(&last));
            assert!(!first.is_disjoint(&first));
            let both = first.union(&last);
            assert_eq!(both.len(), 2);
            assert!(both.contains(ranks - 1) && both.contains(0) && !both.contains(1));
            let all = (0..ranks).map(|rank| Contributors::one(rank, ranks));
            for (count, rank) in all.enumerate() {
                let before = Contributors::first(count, ranks);
                assert_eq!((before.len(), before.contains(count)), (count, false));
                assert_eq!(before.union(&rank), Contributors::first(count + 1, ranks));
            }
            assert_eq!(both.to_string(), format!("{{0, {}}}", ranks - 1));
        }
    }
}

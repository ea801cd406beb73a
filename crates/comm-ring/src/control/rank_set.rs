//! Sets of ranks, as bits.

use comm_core::wire::{self, WireError};

/// The longest set of ranks on the wire, in bytes: one bit per rank.
pub(crate) const SET_BYTES_MAX: usize = 7 << 10;

/// A set of ranks of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RankSet {
    /// One bit per rank, without zero bytes at the end.
    bits: Vec<u8>,
}

impl RankSet {
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.bits.get(rank / 8).is_some_and(|byte| byte >> (rank % 8) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, rank: usize) {
        if self.bits.len() <= rank / 8 {
            self.bits.resize(rank / 8 + 1, 0);
        }
        self.bits[rank / 8] |= 1 << (rank % 8);
    }

    pub(crate) fn remove(&mut self, rank: usize) {
        if let Some(byte) = self.bits.get_mut(rank / 8) {
            *byte &= !(1 << (rank % 8));
        }
        while self.bits.last() == Some(&0) {
            self.bits.pop();
        }
    }

    /// Returns the ranks that are in both sets.
    pub(crate) fn common(&self, other: &Self) -> Self {
        Self::trimmed(self.bits.iter().zip(&other.bits).map(|(a, b)| a & b).collect())
    }

    /// Adds the ranks of another set.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.bits.resize(self.bits.len().max(other.bits.len()), 0);
        self.bits.iter_mut().zip(&other.bits).for_each(|(byte, more)| *byte |= more);
    }

    /// Removes the ranks of another set.
    pub(crate) fn remove_all(&mut self, other: &Self) {
        let mut bits = std::mem::take(&mut self.bits);
        bits.iter_mut().zip(&other.bits).for_each(|(byte, less)| *byte &= !less);
        *self = Self::trimmed(bits);
    }

    /// Creates a set from bytes that may be zero at the end.
    fn trimmed(mut bits: Vec<u8>) -> Self {
        bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        Self { bits }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let used = self.bits.iter().enumerate().filter(|(_, byte)| **byte != 0);
        used.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
        })
    }

    pub(crate) fn last(&self) -> Option<usize> {
        let last = self.bits.last()?;
        Some(self.bits.len() * 8 - 1 - last.leading_zeros() as usize)
    }

    /// Returns the bytes of the set on the wire.
    pub(crate) fn to_bytes(&self) -> &[u8] {
        &self.bits
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> wire::Result<Self> {
        if bytes.last() == Some(&0) {
            return Err(WireError::Unknown { what: "last byte of a set of ranks", value: 0 });
        }
        Ok(Self { bits: bytes.to_vec() })
    }
}

impl FromIterator<usize> for RankSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> Self {
        let mut set = Self::default();
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_ranks_that_were_inserted_and_not_removed() {
        let mut set: RankSet = [70, 3, 8, 3].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 8, 70]);
        assert_eq!(
            (set.last(), set.contains(8), set.contains(9), set.contains(700)),
            (Some(70), true, false, false)
        );
        set.remove(70);
        set.remove(700);
        assert_eq!((set.last(), set.to_bytes()), (Some(8), &[8, 1][..]));
        assert_eq!(RankSet::from_bytes(set.to_bytes()), Ok(set.clone()));
        assert!(RankSet::from_bytes(&[1, 0]).is_err());
        [3, 8].into_iter().for_each(|rank| set.remove(rank));
        assert!(set.is_empty() && set.last().is_none());
    }

    #[test]
    fn sets_are_combined() {
        let set = |ranks: &[usize]| ranks.iter().copied().collect::<RankSet>();
        let (short, long) = (set(&[1, 2, 9]), set(&[2, 9, 30]));
        assert_eq!((short.common(&long), long.common(&short)), (set(&[2, 9]), set(&[2, 9])));
        assert_eq!(set(&[30]).common(&short), RankSet::default());
        let (mut both, mut rest) = (short.clone(), long.clone());
        both.add_all(&long);
        rest.remove_all(&short);
        assert_eq!((both, rest), (set(&[1, 2, 9, 30]), set(&[30])));
        let mut none = short.clone();
        none.remove_all(&short);
        assert!(none.is_empty());
    }
}

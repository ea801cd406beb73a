//! Groups of ranks.

use crate::{Invalid, Result};

/// Names a group: every member knows it by the same number, and no two groups of a job share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The group of all ranks of the job.
    pub const WORLD: Self = Self(0);
}

impl std::fmt::Display for GroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Self::WORLD { f.pad("world") } else { write!(f, "group {:x}", self.0) }
    }
}

/// A group of ranks, seen by one of its members. Ranks count from 0 to size - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    id: GroupId,
    rank: usize,
    size: usize,
}

impl Group {
    /// The most ranks a group may have: ranks travel as 32-bit numbers, and the largest stands for "none".
    pub const SIZE_MAX: usize = u32::MAX as usize - 1;

    /// The group `id` of `size` ranks, seen by `rank`.
    ///
    /// # Errors
    /// [`Invalid::Rank`] if `rank` is not below `size`, which also refuses a group of no ranks, or if `size` is above
    /// [`Group::SIZE_MAX`].
    pub fn new(id: GroupId, rank: usize, size: usize) -> Result<Self> {
        if rank < size && size <= Self::SIZE_MAX {
            Ok(Self { id, rank, size })
        } else {
            Err(Invalid::Rank { rank, size }.into())
        }
    }

    /// The group's name.
    #[must_use]
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// This member's rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of members.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Every rank but this one.
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { rank, size, .. } = *self;
        (0..size).filter(move |&peer| peer != rank)
    }

    /// Refuses a root that is not a member.
    ///
    /// # Errors
    /// [`Invalid::Root`].
    pub fn check_root(&self, root: usize) -> Result<()> {
        if root < self.size { Ok(()) } else { Err(Invalid::Root { root, size: self.size }.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_outside_the_group_is_refused() {
        assert!(Group::new(GroupId::WORLD, 4, 4).is_err());
        assert!(Group::new(GroupId::WORLD, 0, 0).is_err());
        let group = Group::new(GroupId::WORLD, 3, 4).unwrap();
        assert_eq!(group.peers().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(group.check_root(3).is_ok());
        assert!(group.check_root(4).is_err());
    }
}

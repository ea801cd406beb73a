//! Groups of ranks.

use crate::{Invalid, Result};

/// The identifier of a group: the same number on every member, and unique within a job.
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

/// The rank of a member, and the size of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The rank of the member, from 0 to `size - 1`.
    pub rank: usize,
    /// The number of ranks in the group.
    pub size: usize,
}

/// A group of ranks, as seen by one of its members. Ranks count from 0 to size - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    id: GroupId,
    rank: usize,
    size: usize,
}

impl Group {
    /// The largest size of a group: ranks are 32-bit numbers on the wire, and the largest number
    /// means "none".
    pub const SIZE_MAX: usize = u32::MAX as usize - 1;

    /// Creates the group `id`, as seen by one of its members.
    ///
    /// # Errors
    /// [`Invalid::Rank`] if the rank is not below the size, as in every empty group, or if the size
    /// is above [`Group::SIZE_MAX`].
    pub fn new(id: GroupId, Membership { rank, size }: Membership) -> Result<Self> {
        if rank < size && size <= Self::SIZE_MAX {
            Ok(Self { id, rank, size })
        } else {
            Err(Invalid::Rank { rank, size }.into())
        }
    }

    /// Returns the group's identifier.
    #[must_use]
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// Returns this member's rank.
    #[must_use]
    #[inline]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of members.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the group `id` of some members of this one, in the order of the list, as seen by
    /// this process.
    ///
    /// # Errors
    /// [`Invalid::Rank`] if the list names a rank out of range, [`Invalid::Repeated`] if it
    /// contains a duplicate, and [`Invalid::Absent`] if this rank is not in it.
    pub fn subgroup(&self, id: GroupId, members: &[usize]) -> Result<Self> {
        let position = self.check_members(members)?.ok_or(Invalid::Absent { rank: self.rank })?;
        Self::new(id, Membership { rank: position, size: members.len() })
    }

    /// Returns this rank's index in `members`, if it is listed.
    ///
    /// # Errors
    /// [`Invalid::Rank`] if `members` contains a rank out of range, [`Invalid::Repeated`] if it
    /// contains a duplicate.
    pub fn check_members(&self, members: &[usize]) -> Result<Option<usize>> {
        let mut seen = vec![false; self.size];
        for &rank in members {
            let seen = seen.get_mut(rank).ok_or(Invalid::Rank { rank, size: self.size })?;
            if std::mem::replace(seen, true) {
                return Err(Invalid::Repeated { rank }.into());
            }
        }
        Ok(members.iter().position(|&rank| rank == self.rank))
    }

    /// Returns every rank but this one.
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { rank, size, .. } = *self;
        (0..size).filter(move |&peer| peer != rank)
    }

    /// Returns the distances, from 1 to `size - 1` and modulo the size, to the ranks that this one
    /// watches in a large group: the powers of two in both directions. So a rank watches those that
    /// watch it, news reach all ranks in a logarithmic number of steps, and most algorithms send
    /// messages only between such ranks.
    pub fn watched_distances(&self) -> impl Iterator<Item = usize> + use<> {
        let size = self.size;
        let powers = (0..usize::BITS).map(|bit| 1 << bit).take_while(move |distance| *distance < size);
        powers.flat_map(move |distance| [distance, size - distance])
    }

    /// Returns whether this rank watches a peer in a large group.
    #[must_use]
    pub fn watches(&self, peer: usize) -> bool {
        peer < self.size
            && self.watched_distances().any(|distance| (self.rank + distance) % self.size == peer)
    }

    /// Returns an error if `root` is not a member.
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
    fn members_of_a_subgroup_count_in_the_order_of_the_list() {
        let group = Group::new(GroupId::WORLD, Membership { rank: 2, size: 5 }).unwrap();
        let list = [4, 0, 2];
        let subgroup = group.subgroup(GroupId(9), &list).unwrap();
        assert_eq!(subgroup, Group::new(GroupId(9), Membership { rank: 2, size: 3 }).unwrap());
        assert_eq!(group.check_members(&[]).unwrap(), None);
        for (list, message) in
            [(&[2, 5][..], "rank 5"), (&[2, 0, 2], "twice"), (&[0, 1], "not in the list of members")]
        {
            let error = group.subgroup(GroupId(9), list).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_rank_outside_the_group_is_refused() {
        assert!(Group::new(GroupId::WORLD, Membership { rank: 4, size: 4 }).is_err());
        assert!(Group::new(GroupId::WORLD, Membership { rank: 0, size: 0 }).is_err());
        let group = Group::new(GroupId::WORLD, Membership { rank: 3, size: 4 }).unwrap();
        assert_eq!(group.peers().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(group.check_root(3).is_ok());
        assert!(group.check_root(4).is_err());
    }
}

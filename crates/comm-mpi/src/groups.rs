//! Groups of some ranks: the ranks agree, then MPI splits the communicator.

use comm_core::{
    CallOptions, Collective, Element, Error, GroupId, Groups, HostCommunicator, Result, Signature,
};

use crate::communicator::MpiCommunicator;
use crate::raw::Split;
use crate::session::{CallContext, Session};

/// The number of words of a rank in a split: whether it has a color, the color, and its key.
const WORDS: usize = 3;

impl Groups for MpiCommunicator {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        let mut signature = Signature::new(self.session().group.id(), Collective::Split, "");
        (signature.dtype, signature.count) = (Some(u64::DTYPE), WORDS as u64);
        let own = [u64::from(color.is_some()), color.unwrap_or(0), key.cast_unsigned()];
        self.create(&signature, options, |session, context| {
            let all = session.all_words(&own, context)?;
            Ok(color.map(|color| (color_number(&all, color), of_color(&all, color), color)))
        })
    }

    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<dyn HostCommunicator>>> {
        let group = self.session().group;
        let position = group.check_members(ranks)?;
        let mut signature = Signature::new(group.id(), Collective::NewGroup, "");
        signature.extra_fingerprint = Signature::fingerprint_of(ranks.iter().map(|&rank| rank as u64));
        self.create(&signature, options, |session, context| {
            session.barrier(context)?;
            Ok(position.map(|_| (0, ranks.to_vec(), 0)))
        })
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn HostCommunicator>> {
        let group = self.session().group;
        let signature = Signature::new(group.id(), Collective::Duplicate, "");
        let new = self.create(&signature, options, |session, context| {
            session.barrier(context)?;
            Ok(Some((0, (0..group.size()).collect(), 0)))
        })?;
        new.ok_or_else(|| Error::Internal("a rank has no part in a duplicate".into()))
    }
}

/// The part of a rank in a new group: the number of the group, its members, and its color.
type GroupPart = (usize, Vec<usize>, u64);

impl MpiCommunicator {
    /// Creates a group. `agree` returns once every rank has made the call, so that the split, which
    /// has no deadline in MPI, does not wait.
    fn create(
        &self,
        signature: &Signature,
        options: &CallOptions,
        agree: impl FnOnce(&Session, &CallContext<'_>) -> Result<Option<GroupPart>>,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        let session = self.session();
        let (part, new, sequence) = self.make_call(signature, options, |_, context| {
            session.compare_calls(context)?;
            let part = agree(session, context)?;
            let rank = session.group.rank();
            let position = |(_, ranks, _): &GroupPart| ranks.iter().position(|other| *other == rank);
            let split = Split {
                color: part.as_ref().map(|(number, ..)| *number),
                key: part.as_ref().and_then(position).unwrap_or(0),
            };
            Ok((part, session.handle.split(split)?, context.sequence))
        })?;
        let (Some((_, ranks, color)), Some(handle)) = (part, new) else { return Ok(None) };
        let id = GroupId(Signature::fingerprint_of([session.group.id().0, sequence, color]));
        let group = session.group.subgroup(id, &ranks)?;
        let instance = Signature::fingerprint_of([session.instance, sequence, color]);
        Ok(Some(Box::new(Self::over(handle, (group, instance), session.config.clone()))))
    }
}

/// Returns the ranks that gave this color, ordered by key and then by rank.
fn of_color(all: &[u64], color: u64) -> Vec<usize> {
    let words = all.chunks_exact(WORDS).enumerate();
    let same = words.filter(|(_, words)| words[0] != 0 && words[1] == color);
    let mut keyed: Vec<(i64, usize)> = same.map(|(rank, words)| (words[2].cast_signed(), rank)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, rank)| rank).collect()
}

/// Returns the number of a color: colors of MPI are nonnegative integers of 32 bits.
fn color_number(all: &[u64], color: u64) -> usize {
    let mut colors: Vec<u64> =
        all.chunks_exact(WORDS).filter(|words| words[0] != 0).map(|words| words[1]).collect();
    colors.sort_unstable();
    colors.dedup();
    colors.binary_search(&color).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_numbered_and_members_ordered_by_key_and_then_by_rank() {
        let word = i64::cast_unsigned;
        let all = [
            [1, 7, word(5)],
            [1, 7, word(-1)],
            [0, 3, word(-9)],
            [1, u64::MAX, word(0)],
            [1, 7, word(i64::MIN)],
            [1, 7, word(-1)],
        ]
        .concat();
        assert_eq!(of_color(&all, 7), [4, 1, 5, 0]);
        assert_eq!(of_color(&all, u64::MAX), [3]);
        assert_eq!([color_number(&all, 7), color_number(&all, u64::MAX)], [0, 1]);
    }
}

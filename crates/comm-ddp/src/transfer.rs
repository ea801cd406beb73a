//! Moves the state of an optimizer to another division among ranks.

use std::ops::Range;

use comm_core::{Comm, Membership};

use crate::shard_state::{Part, ShardState, before, block_of, overlap};
use crate::shards::inconsistent;
use crate::{BucketPlan, Result, Scalar};

/// The blocks that ranks receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Their own block.
    Own,
    /// The block of the rank before them.
    Neighbor,
    Both,
}

/// A redistribution of state, the same on every rank.
#[derive(Debug)]
pub(crate) struct Transfer<'p> {
    pub(crate) plan: &'p BucketPlan,
    /// The number of ranks among which the state was divided.
    pub(crate) former_size: usize,
    /// The rank that sends the block of each former rank.
    pub(crate) sources: &'p [usize],
    pub(crate) copies: Copies,
}

/// Elements of a bucket that one rank sends to another.
struct Piece {
    /// The former rank to whose block they belong.
    former: usize,
    /// The rank to whose block they belong now.
    owner: usize,
    bucket: usize,
    elements: Range<usize>,
}

impl Transfer<'_> {
    /// Fills the parts of `into` with the state that all ranks hold together. `from` is the former
    /// state of this rank, if it is a source. This is a collective: one all-to-all.
    pub(crate) fn run<T: Scalar>(
        &self,
        comm: &Comm,
        mut from: Option<&mut ShardState<T>>,
        into: &mut ShardState<T>,
    ) -> Result<()> {
        let size = comm.size();
        let (mut sent, mut send_counts) = (Vec::new(), Vec::with_capacity(size));
        for receiver in 0..size {
            let before = sent.len();
            for piece in self.pieces(comm.rank(), Membership { rank: receiver, size }) {
                let former = from.as_mut().and_then(|from| from.block_mut(piece.former));
                let parts = former.and_then(|block| block.get_mut(piece.bucket)).ok_or_else(inconsistent)?;
                arrays_mut(parts, &piece.elements).for_each(|array| sent.extend_from_slice(array));
            }
            send_counts.push(sent.len() - before);
        }
        let own = Membership { rank: comm.rank(), size };
        let mut recv_counts = Vec::with_capacity(size);
        for sender in 0..size {
            let mut count = 0;
            for piece in self.pieces(sender, own) {
                let parts = parts_mut(into, own, &piece).ok_or_else(inconsistent)?;
                count += arrays_mut(parts, &piece.elements).map(|array| array.len()).sum::<usize>();
            }
            recv_counts.push(count);
        }
        let mut received = vec![T::zeroed(); recv_counts.iter().sum()];
        comm.all_to_all_v(&sent, &send_counts, &mut received, &recv_counts)?;
        let mut rest = &received[..];
        for piece in (0..size).flat_map(|sender| self.pieces(sender, own)) {
            let parts = parts_mut(into, own, &piece).ok_or_else(inconsistent)?;
            for array in arrays_mut(parts, &piece.elements) {
                let (values, others) = rest.split_at_checked(array.len()).ok_or_else(inconsistent)?;
                comm_core::copy(array, values);
                rest = others;
            }
        }
        Ok(())
    }

    /// Returns the pieces that one rank sends to another, in an order that both know.
    fn pieces(&self, sender: usize, receiver: Membership) -> impl Iterator<Item = Piece> {
        let owners = match self.copies {
            Copies::Own => vec![receiver.rank],
            Copies::Neighbor => vec![before(receiver)],
            Copies::Both => vec![receiver.rank, before(receiver)],
        };
        let formers = self.sources.iter().enumerate().filter(move |(_, source)| **source == sender);
        formers.flat_map(move |(former, _)| {
            owners.clone().into_iter().flat_map(move |owner| {
                self.plan.buckets().iter().enumerate().map(move |(bucket, planned)| {
                    let then = block_of(planned, Membership { rank: former, size: self.former_size });
                    let now = block_of(planned, Membership { rank: owner, size: receiver.size });
                    Piece { former, owner, bucket, elements: overlap(&then, &now) }
                })
            })
        })
    }
}

/// Returns the parts of a member's new state to which a piece belongs.
fn parts_mut<'s, T: Scalar>(
    state: &'s mut ShardState<T>,
    member: Membership,
    piece: &Piece,
) -> Option<&'s mut Vec<Part<T>>> {
    let block = if piece.owner == member.rank { &mut state.own } else { &mut state.neighbor };
    block.get_mut(piece.bucket)
}

/// Returns the states, within these elements of the bucket, of parts in a block of the bucket.
fn arrays_mut<'p, T: Scalar>(
    parts: &'p mut [Part<T>],
    elements: &Range<usize>,
) -> impl Iterator<Item = &'p mut [T]> {
    parts.iter_mut().flat_map(move |part| {
        let common = overlap(&part.located, elements);
        let start = common.start - part.located.start;
        let range = start..start + common.len();
        part.arrays_mut()
            .filter_map(move |array| array.get_mut(range.clone()))
            .filter(|array| !array.is_empty())
    })
}

//! Groups of some ranks.

use std::collections::BTreeSet;

use comm_core::{AsViewMut, Buffers, Call, Communicator, Error, Memory, ReduceOp};

use super::outcome::{ensure, same_bits};
use super::{CheckResult, Member};

/// Checks that groups have the right members in the right order, and reduce only among them.
///
/// # Errors
/// [`Failure`](super::Failure).
pub fn splits_into_groups<M: Member>(member: &M) -> CheckResult {
    let Some(parent) = member.groups() else { return Ok(()) };
    let (rank, size) = (parent.group().rank(), parent.group().size());
    let options = member.features().options;
    // Extreme colors and keys, which reverse the order.
    let (color, key) = (u64::MAX - rank as u64 % 2, i64::MIN + (size - rank) as i64);
    let half = parent.split(Some(color), key, &options)?;
    let first = parent.new_group(&[0], &options)?;
    let all = parent.duplicate(&options)?;
    let none = parent.split((rank == 0).then_some(7), 0, &options)?;
    ensure(none.is_some() == (rank == 0), || "a rank without a color has a group".into())?;
    ensure(first.is_some() == (rank == 0), || "a group has a rank that is not listed".into())?;
    let twice = parent.new_group(&[0, 0], &options);
    ensure(matches!(twice, Err(Error::Invalid(_))), || "a group may have a rank twice".into())?;
    let members: Vec<usize> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
    let Some(half) = half else {
        return ensure(false, || "a rank with a color has no group".into());
    };
    let position = members.iter().position(|other| *other == rank).unwrap_or_default();
    let group = (half.group().rank(), half.group().size());
    ensure(group == (position, members.len()), || format!("the half's rank and size: {group:?}"))?;
    let ids = [parent.group().id(), half.group().id(), all.group().id()];
    ensure(ids.iter().collect::<BTreeSet<_>>().len() == 3, || format!("the ids are not unique: {ids:?}"))?;
    for _ in 0..2 {
        sums::<M>(member, &*half, members.iter().map(|rank| *rank as i64 + 1).sum())?;
        sums::<M>(member, &*all, (1..=size as i64).sum())?;
        if let Some(first) = &first {
            sums::<M>(member, &**first, 1)?;
        }
    }
    Ok(member.synchronize()?)
}

/// Checks an all-reduce of one more than each member's rank in the parent.
fn sums<M: Member>(member: &M, group: &<M::Memory as Memory>::Communicator, wanted: i64) -> CheckResult {
    let ours = member.communicator().group().rank() as i64 + 1;
    let mut buffer = member.buffer(&[ours; 1000])?;
    let buffers = Buffers::InPlace(buffer.as_view_mut()?);
    group.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &member.features().options)?;
    same_bits("the sum over a group", &member.read(&buffer)?, &[wanted; 1000])
}

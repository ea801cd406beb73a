//! Tests of channels between some of the ranks.

use std::time::{Duration, Instant};

use comm_core::{
    ChannelId, ChannelKind, Error, Fabric, Group, GroupId, Invalid, Membership, Result, Transport,
};

use super::CreateFabrics;
use super::port::{Gate, Port, each, lost};

/// Returns the channel for collectives of the group with this number.
const fn channel(group: u64) -> ChannelId {
    ChannelId { group: GroupId(group), kind: ChannelKind::Collective }
}

/// Opens a channel among `members`, on which every member sends its rank in the world to every
/// other.
fn introduce<L: Fabric>(fabric: &L, group: u64, members: &[usize]) -> Result<Port<L::Channel>> {
    let world = fabric.group().rank();
    let mut port = Port::open_among(fabric, channel(group), members)?;
    let rank = members.iter().position(|&member| member == world);
    let expected =
        Group::new(GroupId(group), Membership { rank: rank.unwrap_or(usize::MAX), size: members.len() })?;
    assert_eq!(port.transport.group(), expected, "rank {world} in {members:?}");
    for peer in expected.peers() {
        port.send(peer, &[world as u8, peer as u8, group as u8])?;
    }
    for peer in expected.peers() {
        let mut received = [0; 3];
        port.recv(peer, &mut received)?;
        let expected_bytes = [members[peer] as u8, expected.rank() as u8, group as u8];
        assert_eq!(received, expected_bytes, "rank {peer} of {members:?}, to rank {world} of the world");
    }
    Ok(port)
}

/// Disjoint groups open channels at the same time, with lists in any order.
pub fn disjoint_subsets_open_at_once<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let partitions: [&[&[usize]]; 3] =
        [&[&[0, 2, 4], &[1, 3]], &[&[4, 0, 2], &[3, 1]], &[&[3, 4], &[2, 1, 0]]];
    each(create, 5, |fabric| {
        let rank = fabric.group().rank();
        for (round, partition) in partitions.iter().enumerate() {
            let own = partition.iter().enumerate().find(|(_, members)| members.contains(&rank));
            if let Some((at, members)) = own {
                introduce(fabric, (10 * round + at + 1) as u64, members)?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Ranks within a channel follow the list of members, even if it reorders the world.
pub fn members_are_ranked_in_the_order_of_the_list<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let orders: [[usize; 4]; 4] = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 3, 0], [2, 0, 3, 1]];
    each(create, 4, |fabric| {
        let open = |at: usize| introduce(fabric, at as u64 + 1, &orders[at]);
        (0..orders.len()).try_for_each(|at| open(at).map(drop))
    })?;
    Ok(())
}

/// Overlapping groups are each opened and used by a separate thread, in a different order on every
/// rank.
pub fn overlapping_subsets_open_from_several_threads<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let groups: [&[usize]; 6] = [&[0, 1], &[1, 2], &[2, 0], &[2, 0, 1], &[3, 1], &[0, 3, 2, 1]];
    each(create, 4, |fabric| {
        let rank = fabric.group().rank();
        let own = groups.iter().enumerate().filter(|(_, members)| members.contains(&rank)).collect();
        let talk = |(at, members): (usize, &&[usize])| {
            std::thread::sleep(Duration::from_millis(3 * ((at + 5 * rank) % groups.len()) as u64));
            introduce(fabric, at as u64 + 1, members).map(drop)
        };
        crate::run_each(own, talk).into_iter().collect::<Result<Vec<()>>>()
    })?;
    Ok(())
}

/// A group of one rank opens without any other rank.
pub fn a_subset_of_one_opens_at_once<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    each(create, 3, |fabric| {
        let port = introduce(fabric, 1 + fabric.group().rank() as u64, &[fabric.group().rank()])?;
        assert_eq!((port.rank(), port.transport.group().size()), (0, 1));
        Ok(())
    })?;
    Ok(())
}

/// Invalid lists of members are rejected immediately, without waiting for another rank.
pub fn invalid_lists_of_members_are_refused<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    each(create, 3, |fabric| {
        let began = Instant::now();
        let deadline = fabric.now() + Duration::from_secs(30);
        let invalid =
            |members: &[usize]| match fabric.open_among(channel(1), members, deadline.into()).map(drop) {
                Err(Error::Invalid(invalid)) => Some(invalid),
                _ => None,
            };
        let rank = fabric.group().rank();
        let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
        assert_eq!(invalid(&[rank, next, rank]), Some(Invalid::Repeated { rank }));
        assert_eq!(invalid(&[rank, 3]), Some(Invalid::Rank { rank: 3, size: 3 }));
        assert_eq!(invalid(&[next, last]), Some(Invalid::Absent { rank }));
        assert_eq!(invalid(&[]), Some(Invalid::Absent { rank }));
        assert!(began.elapsed() < Duration::from_secs(5), "it waited for another rank");
        Ok(())
    })?;
    Ok(())
}

/// A rank that waits for one that passes a different list, or none, gets a timeout that names the
/// missing rank by its position in the list of the waiting rank.
pub fn different_lists_of_members_end_at_the_deadline<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let over = Gate::new(4);
    each(create, 4, |fabric| {
        let lists: [&[usize]; 4] = [&[0, 1], &[3, 0, 1], &[], &[]];
        let rank = fabric.group().rank();
        if !lists[rank].is_empty() {
            let deadline = fabric.now() + Duration::from_millis(300);
            let opened = fabric.open_among(channel(1), lists[rank], deadline.into()).map(drop);
            let named = match &opened {
                Err(Error::Timeout { waiting_for, .. }) => &waiting_for[..],
                _ => &[],
            };
            // Rank 3 of the world, which never opens the channel, is rank 0 in the list of rank 1.
            assert!(rank == 0 || (named.contains(&0) && !named.contains(&2)), "{opened:?}");
        }
        over.wait();
        Ok(())
    })?;
    Ok(())
}

/// A member that has exited is named by its rank in the channel, and groups without it continue.
pub fn a_death_names_the_rank_within_the_channel<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let done = Gate::new(3);
    each(create, 4, |fabric| {
        let rank = fabric.group().rank();
        let mut with_exited = introduce(fabric, 1, &[3, 1, 2, 0])?;
        if rank == 1 {
            return Ok(());
        }
        let mut without = introduce(fabric, 2, &[2, 3, 0])?;
        let error = Err::<(), _>(with_exited.recv_error(1)?);
        assert_eq!(lost(&error), Some(1), "{error:?}");
        let (next, before) = ((without.rank() + 1) % 3, (without.rank() + 2) % 3);
        without.send(next, &[rank as u8])?;
        assert_eq!(without.recv_byte(before)?, [2, 3, 0][before]);
        done.wait();
        Ok(())
    })?;
    Ok(())
}

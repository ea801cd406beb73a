//! Groups created from groups: their members, their independence of each other, and the errors if
//! ranks disagree.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Barrier;
use std::time::Duration;

use crate::common::{contributions, virtual_world, virtual_world_on, world};
use comm_core::{ChannelId, ChannelKind, Comm, Error, Fabric, GroupId, ReduceOp, Result, Until};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::AlteredFabric;
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};
use comm_sim::network::FaultPlan;

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    world(ranks, &InProcessConfig::default(), &RingConfig::default(), rank)
}

/// Checks that a group has these members of the world, in this order, and that a sum over them is
/// exact.
fn check(group: &Comm, world_rank: usize, members: &[usize]) {
    assert_eq!(group.size(), members.len());
    assert_eq!(members[group.rank()], world_rank);
    let mut gathered = vec![0; members.len()];
    group.all_gather(&[world_rank as u64], &mut gathered).unwrap();
    assert!(gathered.iter().copied().eq(members.iter().map(|&member| member as u64)), "{gathered:?}");
    for len in [0, 1, members.len() + 1, 1000] {
        let mut buffer = contributions::<f32>(world_rank, len);
        group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert_eq!(buffer, sums(members, len));
    }
}

/// The sum of the contributions of these ranks.
fn sums(members: &[usize], len: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = members.iter().map(|&rank| contributions(rank, len)).collect();
    (0..len).map(|at| all.iter().map(|one| one[at]).sum()).collect()
}

#[test]
fn even_and_odd_ranks_split_with_reversed_keys() {
    for ranks in (1..=9).chain([13]) {
        let ids = run(ranks, |comm| {
            let (rank, color) = (comm.rank(), comm.rank() % 2);
            let half = comm.split(Some(color as u64), -(rank as i64)).unwrap().unwrap();
            let members: Vec<usize> = (0..ranks).rev().filter(|other| other % 2 == color).collect();
            check(&half, rank, &members);
            assert_ne!(half.group().id(), comm.group().id());
            check(&comm, rank, &(0..ranks).collect::<Vec<_>>());
            half.group().id()
        });
        for (rank, id) in ids.iter().enumerate() {
            assert_eq!(*id, ids[rank % 2], "all members of a group have the same id for it");
        }
        assert!(ranks == 1 || ids[0] != ids[1], "two groups have the same id");
    }
}

#[test]
fn equal_keys_keep_the_order_of_ranks() {
    run(5, |comm| {
        let key = [3, 0, 3, i64::MIN, 0][comm.rank()];
        let group = comm.split(Some(u64::MAX), key).unwrap().unwrap();
        check(&group, comm.rank(), &[3, 1, 4, 0, 2]);
    });
}

#[test]
fn a_rank_without_a_color_gets_no_group() {
    for ranks in [1, 2, 5, 8] {
        run(ranks, |comm| {
            let rank = comm.rank();
            let color = (rank % 3 != 1).then_some(0);
            let group = comm.split(color, 0).unwrap();
            assert_eq!(group.is_some(), color.is_some());
            let members: Vec<usize> = (0..ranks).filter(|rank| rank % 3 != 1).collect();
            if let Some(group) = group {
                check(&group, rank, &members);
            }
            assert!(comm.split(None, 7).unwrap().is_none());
            check(&comm, rank, &(0..ranks).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_group_has_the_order_of_its_list_and_other_ranks_return_none() {
    run(6, |comm| {
        let (rank, list) = (comm.rank(), [4, 1, 3]);
        let group = comm.new_group(&list).unwrap();
        assert_eq!(group.is_some(), list.contains(&rank));
        if let Some(group) = group {
            check(&group, rank, &list);
            drop(group);
        }
        assert!(comm.new_group(&[]).unwrap().is_none());
        check(&comm, rank, &[0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn groups_are_created_on_a_slow_and_uneven_network() {
    for (seed, ranks) in [1, 2, 3, 5, 8].into_iter().enumerate() {
        let (plan, config) = (FaultPlan::rough(), RingConfig::default());
        virtual_world_on(&plan, ranks, seed as u64, &config, |comm, _| {
            let (rank, reversed) = (comm.rank(), (0..ranks).rev().collect::<Vec<_>>());
            check(&comm.new_group(&reversed).unwrap().unwrap(), rank, &reversed);
            let pair: Vec<usize> = (0..ranks).filter(|other| other / 2 == rank / 2).collect();
            check(&comm.split(Some(rank as u64 / 2), 0).unwrap().unwrap(), rank, &pair);
        });
    }
}

#[test]
fn groups_nest_and_outlive_their_parents() {
    run(8, |comm| {
        let rank = comm.rank();
        let quarter = {
            let half = comm.split(Some((rank % 2) as u64), 0).unwrap().unwrap();
            let reversed: Vec<usize> = (0..4).rev().collect();
            half.new_group(&reversed).unwrap().unwrap().split(Some((rank / 4) as u64), 0).unwrap().unwrap()
        };
        drop(comm);
        // Four of the even or odd ranks in reverse order; each half keeps two of them.
        let first = rank % 2 + rank / 4 * 4;
        check(&quarter, rank, &[first + 2, first]);
        let alone = quarter.split(Some(rank as u64), 0).unwrap().unwrap();
        check(&alone, rank, &[rank]);
        check(&quarter.duplicate().unwrap(), rank, &[first + 2, first]);
    });
}

#[test]
fn overlapping_groups_reduce_at_the_same_time() {
    let lists: [&[usize]; 5] = [&[0, 1, 2], &[2, 3, 4], &[4, 0], &[3, 1, 0, 2], &[4, 3, 2, 1, 0]];
    run(5, |comm| {
        let groups: Vec<_> = lists.iter().map(|list| comm.new_group(list).unwrap()).collect();
        std::thread::scope(|scope| {
            for (group, members) in groups.iter().zip(lists) {
                let Some(group) = group else { continue };
                let rank = comm.rank();
                scope.spawn(move || {
                    for round in 0..40 {
                        let len = [1, 7, 300, 20_000][round % 4];
                        let mut buffer = contributions::<f32>(rank, len);
                        group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                        assert_eq!(buffer, sums(members, len), "round {round} of {members:?}");
                    }
                });
            }
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn eight_threads_with_duplicates_have_a_thousand_calls_outstanding() {
    const THREADS: u32 = 8;
    const CALLS: u32 = 125;
    run(3, |comm| {
        let duplicates: Vec<Comm> = (0..THREADS).map(|_| comm.duplicate().unwrap()).collect();
        let all_submitted = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for (thread, comm) in (0..).zip(&duplicates) {
                let all_submitted = &all_submitted;
                scope.spawn(move || {
                    let number = |call| thread * 1000 + call + 1;
                    let submit = |call| {
                        let buffer = vec![number(call) * (comm.rank() as u32 + 1); call as usize % 50];
                        comm.all_reduce_async(buffer, ReduceOp::Sum).unwrap()
                    };
                    let works: Vec<_> = (0..CALLS).map(submit).collect();
                    all_submitted.wait();
                    for (work, call) in works.into_iter().zip(0..) {
                        assert_eq!(work.wait().unwrap(), vec![number(call) * 6; call as usize % 50]);
                    }
                });
            }
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn a_group_starts_with_the_options_of_its_parent() {
    let errors = virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        let short = comm.with_timeout(Duration::from_millis(300));
        let group = short.split(Some(0), 0).unwrap().unwrap();
        if comm.rank() == 1 {
            clock.sleep(Duration::from_millis(800));
            return None;
        }
        Some(group.barrier().unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        match error {
            Error::Timeout { waiting_for, after, .. } => {
                assert_eq!((waiting_for, after), (vec![1], Duration::from_millis(300)));
            }
            other => panic!("expected a timeout, got: {other}"),
        }
    }
}

#[test]
fn a_group_that_ends_or_fails_ends_no_other() {
    run(4, |comm| {
        let rank = comm.rank();
        let (first, second) = (comm.duplicate().unwrap(), comm.duplicate().unwrap());
        let third = second.split(Some(0), 0).unwrap().unwrap();
        let ids = [&comm, &first, &second, &third].map(|comm| comm.group().id());
        assert_eq!(std::collections::HashSet::from(ids).len(), ids.len(), "{ids:?}");
        // Its other members may be in their last call on it.
        first.barrier().unwrap();
        drop(first);
        if rank == 2 {
            second.abort("enough of this one");
        }
        let error = second.barrier().unwrap_err();
        assert!(matches!(error.root_cause(), Error::Aborted { by: 2, .. }), "{error}");
        assert!(matches!(second.split(Some(0), 0), Err(Error::Poisoned(_))));
        check(&third, rank, &[0, 1, 2, 3]);
        check(&comm, rank, &[0, 1, 2, 3]);
        check(&comm.duplicate().unwrap(), rank, &[0, 1, 2, 3]);
    });
}

#[test]
fn an_invalid_list_is_refused_before_anything_is_sent() {
    run(3, |comm| {
        for list in [&[0, 3][..], &[1, 2, 1]] {
            assert!(matches!(comm.new_group(list), Err(Error::Invalid(_))));
        }
        check(&comm, comm.rank(), &[0, 1, 2]);
    });
}

type Call = dyn Fn(&Comm) -> Result<()> + Sync;

/// Rank 0 calls `first`, every other rank `second`; all fail with a desync that names both calls.
fn mismatch(ranks: usize, (first, first_name): (&Call, &str), (second, second_name): (&Call, &str)) {
    let errors = virtual_world(ranks, 0, &RingConfig::default(), |comm, _| {
        let comm = comm.split(Some(0), -(comm.rank() as i64)).unwrap().unwrap();
        let call = || if comm.rank() == 0 { first(&comm) } else { second(&comm) };
        // A rank may detect the mismatch in the last barrier, or in the one after its call.
        let result = (0..500).try_for_each(|_| comm.barrier()).and_then(|()| call());
        result.and_then(|()| comm.barrier()).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        match error.root_cause() {
            Error::Desync(desync) => assert_eq!(desync.sequence, 501, "{text}"),
            other => panic!("expected a desync, got: {other}"),
        }
        assert!(text.contains(first_name) && text.contains(second_name), "{text}");
    }
}

#[test]
fn ranks_that_disagree_on_a_group_get_an_error_with_both_calls() {
    let new_group = |list: &'static [usize]| move |comm: &Comm| comm.new_group(list).map(drop);
    let detail = |list: &[u64]| {
        format!("new_group(extra fingerprint {:x}", comm_core::Signature::fingerprint_of(list.to_vec()))
    };
    for (ranks, one, other) in [(2, [0, 1], [1, 0]), (3, [0, 1], [0, 2]), (5, [3, 4], [0, 4])] {
        let (one, other): (&'static [usize], &'static [usize]) = (one.to_vec().leak(), other.to_vec().leak());
        let word = |list: &[usize]| list.iter().map(|&rank| rank as u64).collect::<Vec<_>>();
        let (first, second) = (detail(&word(one)), detail(&word(other)));
        mismatch(ranks, (&new_group(one), &first), (&new_group(other), &second));
    }
    let split = |comm: &Comm| comm.split(Some(1), 0).map(drop);
    let duplicate = |comm: &Comm| comm.duplicate().map(drop);
    let all_reduce = |comm: &Comm| comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Sum);
    mismatch(3, (&split, "split(3 x u64"), (&all_reduce, "all_reduce(sum, 4 x f32"));
    mismatch(4, (&duplicate, "duplicate("), (&split, "split("));
    mismatch(3, (&duplicate, "duplicate("), (&|comm: &Comm| comm.barrier(), "barrier("));
    mismatch(2, (&duplicate, "duplicate("), (&new_group(&[0, 1]), "new_group("));
}

#[test]
fn threads_that_use_a_communicator_in_different_orders_get_a_desync() {
    let errors = run(2, |comm| {
        let all_reduce = |op| comm.all_reduce_async(vec![1_u32; 8], op).unwrap();
        let ops = [ReduceOp::Sum, ReduceOp::Prod];
        let calls = [0, 1].map(|at| all_reduce(ops[(at + comm.rank()) % 2]));
        calls.map(|call| call.wait().unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error.root_cause(), Error::Desync(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("sum") && text.contains("prod"), "{text}");
    }
}

#[test]
fn a_rank_that_never_makes_the_call_is_named_at_the_deadline() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let call = |comm: &Comm, which: usize| match which {
        0 => comm.split(Some(0), 0).map(drop),
        1 => comm.new_group(&[0, 2]).map(drop),
        _ => comm.duplicate().map(drop),
    };
    for (which, seed) in (0..3).flat_map(|which| (0..20).map(move |seed| (which, seed))) {
        let errors = virtual_world(5, seed, &RingConfig::default(), |comm, clock| {
            if comm.rank() == 3 {
                clock.sleep(10 * TIMEOUT);
                return None;
            }
            let start = clock.elapsed();
            let error = call(&comm.with_timeout(TIMEOUT), which).unwrap_err();
            assert!(clock.elapsed() - start <= TIMEOUT, "{:?}", clock.elapsed() - start);
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            match error.root_cause() {
                Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, &[3], "{error}"),
                other => panic!("expected a timeout, got: {other}"),
            }
        }
    }
}

/// Opens a channel, except that rank 2 cannot open channels for collectives beyond the world's.
fn too_many(
    fabric: &InProcessFabric,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
) -> Result<InProcessTransport> {
    let second = channel.group != GroupId::WORLD && channel.kind == ChannelKind::Collective;
    if second && fabric.group().rank() == 2 {
        return Err(Error::io("open a channel", std::io::Error::other("too many")));
    }
    fabric.open_among(channel, members, until)
}

#[test]
fn members_that_cannot_be_connected_are_named_and_the_parent_stays_usable() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    let errors = in_process::run(5, &InProcessConfig::default(), |fabric| {
        let fabric = AlteredFabric { fabric, open: too_many };
        let ring = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(20)).unwrap();
        let comm = Comm::new(ring).with_timeout(Duration::from_secs(20));
        let made = comm.with_timeout(TIMEOUT).new_group(&[4, 2, 1]);
        check(&comm, comm.rank(), &[0, 1, 2, 3, 4]);
        made.err()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        match (rank, error) {
            (0 | 3, error) => assert!(error.is_none(), "{error:?}"),
            (2, Some(Error::NotConnected(cause))) => assert!(matches!(*cause, Error::Io { .. }), "{cause}"),
            (_, Some(error @ Error::NotConnected(_))) => {
                let named =
                    matches!(error.root_cause(), Error::Timeout { waiting_for, .. } if waiting_for == &[2]);
                assert!(named && !error.is_fatal(), "rank {rank}: {error}");
            }
            (_, other) => panic!("rank {rank}: {other:?}"),
        }
    }
}

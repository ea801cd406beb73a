//! Tests of groups over TCP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Barrier;
use std::time::Duration;

use crate::common::{world, world_with};
use comm::{Comm, Error, ReduceOp};

/// Checks the members of a group in order, and that its reductions are exact.
fn check(group: &Comm, world_rank: usize, members: &[usize]) {
    assert_eq!((group.size(), members[group.rank()]), (members.len(), world_rank));
    let mut gathered = vec![0; members.len()];
    group.all_gather(&[world_rank as u32], &mut gathered).unwrap();
    assert!(gathered.iter().copied().eq(members.iter().map(|&member| member as u32)), "{gathered:?}");
    let sum: usize = members.iter().map(|member| member + 1).sum();
    for len in [0, 1, 1000, 100_000] {
        let mut buffer = vec![(world_rank + 1) as f32; len];
        group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(buffer.iter().all(|&element| element == sum as f32));
    }
}

#[test]
fn even_and_odd_ranks_split_with_reversed_keys() {
    for ranks in 1..=9 {
        world(ranks, |comm| {
            let (rank, color) = (comm.rank(), comm.rank() % 2);
            let half = comm.split(Some(color as u64), -(rank as i64)).unwrap().unwrap();
            let members: Vec<usize> = (0..ranks).rev().filter(|other| other % 2 == color).collect();
            check(&half, rank, &members);
            check(&comm, rank, &(0..ranks).collect::<Vec<_>>());
        });
    }
}

#[test]
fn nested_and_overlapping_groups_reduce_at_the_same_time() {
    let lists: [&[usize]; 4] = [&[0, 1, 2, 3], &[5, 3, 1], &[2, 4], &[5, 4, 3, 2, 1, 0]];
    world(6, |comm| {
        let rank = comm.rank();
        let mut groups: Vec<(Comm, Vec<usize>)> = Vec::new();
        for list in lists {
            groups.extend(comm.new_group(list).unwrap().map(|group| (group, list.to_vec())));
        }
        let third = comm.split(Some((rank % 3) as u64), 0).unwrap().unwrap();
        let nested = third.new_group(&[1, 0]).unwrap().unwrap();
        let (low, high) = (rank % 3, rank % 3 + 3);
        groups.extend([(third, vec![low, high]), (nested, vec![high, low])]);
        drop(comm);
        std::thread::scope(|scope| {
            for (group, members) in &groups {
                scope.spawn(move || (0..5).for_each(|_| check(group, rank, members)));
            }
        });
    });
}

#[test]
fn eight_threads_with_duplicates_have_a_thousand_calls_outstanding() {
    world(2, |comm| {
        let duplicates: Vec<Comm> = (0..8).map(|_| comm.duplicate().unwrap()).collect();
        std::thread::scope(|scope| {
            for (thread, comm) in (0..).zip(&duplicates) {
                scope.spawn(move || {
                    let number = |call: u32| thread * 1000 + call;
                    let submit = |call| {
                        let buffer = vec![number(call) * (comm.rank() as u32 + 1); 20];
                        comm.all_reduce_async(buffer, ReduceOp::Sum).unwrap()
                    };
                    let works: Vec<_> = (0..125).map(submit).collect();
                    for (work, call) in works.into_iter().zip(0..) {
                        assert_eq!(work.wait().unwrap(), [3 * number(call); 20]);
                    }
                });
            }
        });
        comm.barrier().unwrap();
    });
}

#[test]
fn different_lists_are_an_error_on_every_rank() {
    let errors = world(3, |comm| {
        let list = if comm.rank() == 1 { [0, 1] } else { [0, 2] };
        comm.new_group(&list).map(drop).and_then(|()| comm.barrier()).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error.root_cause(), Error::Desync(_)), "{error}");
        assert!(error.to_string().matches("new_group(extra fingerprint").count() >= 2, "{error}");
    }
}

#[test]
fn a_rank_that_never_splits_is_named_at_the_deadline() {
    let short = |config: &mut comm::Config| config.timeout = Duration::from_millis(500);
    let others_failed = Barrier::new(4);
    let errors = world_with(4, short, |comm| {
        if comm.rank() == 1 {
            others_failed.wait();
            return None;
        }
        let error = comm.split(Some(0), 0).map(drop).unwrap_err();
        others_failed.wait();
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        match error.root_cause() {
            Error::Timeout { waiting_for, .. } => assert_eq!(waiting_for, &[1], "{error}"),
            other => panic!("expected a timeout, got: {other}"),
        }
    }
}

#[test]
fn settings_are_those_of_rank_0() {
    let ranks = std::sync::atomic::AtomicUsize::new(0);
    let different = |config: &mut comm::Config| {
        let own = ranks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (config.ring.window, config.ring.segment_bytes) = (2 + own, 1000 << own);
    };
    world_with(4, different, |comm| {
        check(&comm, comm.rank(), &[0, 1, 2, 3]);
        check(&comm.new_group(&[3, 2, 1, 0]).unwrap().unwrap(), comm.rank(), &[3, 2, 1, 0]);
    });
}

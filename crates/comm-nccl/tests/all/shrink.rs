//! The remaining ranks shrink a group after a failure.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, Call, CallOptions, Communicator, During, Error, Groups, Invalid, ReduceOp, Result};
use comm_nccl::{NcclCommunicator, ShrinkMode};
use nccl_sys::ncclResult_t;

use crate::common::{Rank, SOON, control, devices, faults_of, options, within, world_over_host};

/// Long enough for a device to make progress, and short enough for a test.
const SHORT: Duration = Duration::from_millis(400);

/// Ranks that were connected over the host. At the end, their devices have no faults.
fn world<T: Send>(ordinals: &[usize], body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let outcomes = world_over_host(ordinals, body);
    assert_eq!(faults_of(ordinals), Vec::<String>::new());
    outcomes
}

fn sum(
    comm: &dyn Communicator<comm_nccl::Cuda>,
    rank: &Rank,
    ours: i64,
    options: &CallOptions,
) -> Result<i64> {
    let mut buffer = rank.buffer(&[ours]);
    comm.run(Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum }, options)?;
    Ok(buffer.to_vec()?[0])
}

fn abort(rank: &Rank, without: &[usize], options: &CallOptions) -> Result<NcclCommunicator> {
    rank.comm.shrink(without, ShrinkMode::Abort, options)
}

/// The group of the remaining ranks works.
#[track_caller]
fn assert_left(left: &NcclCommunicator, rank: &Rank, position: usize, members: &[usize]) {
    assert_eq!((left.group().rank(), left.group().size()), (position, members.len()));
    assert_ne!(left.group().id(), rank.comm.group().id());
    let total: usize = members.iter().sum();
    assert_eq!(sum(left, rank, rank.rank as i64, &options()).unwrap(), total as i64);
}

#[test]
fn the_remaining_ranks_shrink_whichever_rank_is_gone() {
    for gone in [0, 1, 3] {
        world(&devices(4), |rank| {
            assert_eq!(sum(&rank.comm, &rank, 1, &options()).unwrap(), 4);
            if rank.rank == gone {
                return rank.comm.abort("its data is gone");
            }
            let error = rank.comm.run(Call::Barrier, &options()).unwrap_err();
            assert!(matches!(error.root_cause(), Error::Aborted { by, .. } if *by == gone), "{error}");
            let refused = rank.comm.shrink(&[gone], ShrinkMode::Default, &options()).unwrap_err();
            assert!(matches!(refused, Error::Poisoned(_)), "{refused}");
            let members: Vec<usize> = (0..4).filter(|member| *member != gone).collect();
            let position = members.iter().position(|member| *member == rank.rank).unwrap();
            let left = abort(&rank, &[gone], &options()).unwrap();
            assert_left(&left, &rank, position, &members);
            // The parent is unchanged.
            let refused = sum(&rank.comm, &rank, 1, &options()).unwrap_err();
            assert!(matches!(refused, Error::Poisoned(_)), "{refused}");
        });
    }
}

#[test]
fn a_group_shrinks_again_and_again_until_one_is_left() {
    world(&devices(3), |mut rank| {
        for last in [2, 1] {
            let mut buffer = rank.zeros::<f32>(1);
            if rank.rank == last {
                return;
            }
            // The failed rank does not take part.
            let all = Buffers::InPlace(buffer.view_mut());
            let lost = rank.comm.run(Call::AllReduce { buffers: all, op: ReduceOp::Sum }, &within(SHORT));
            assert!(lost.and_then(|()| rank.comm.synchronize()).is_err());
            let left = abort(&rank, &[last], &options()).unwrap();
            let members: Vec<usize> = (0..last).collect();
            assert_left(&left, &rank, rank.rank, &members);
            rank.comm = left;
        }
        // A single rank needs no rendezvous.
        assert_left(&abort(&rank, &[], &options()).unwrap(), &rank, 0, &[0]);
    });
}

#[test]
fn a_rank_that_cannot_be_connected_is_named_as_it_was() {
    let (devices, together) = (devices(4), Barrier::new(2));
    control().plan_answer(devices[3], c"ncclCommInitRankConfig", 1, ncclResult_t::ncclSystemError);
    world(&devices, |rank| {
        if rank.rank % 2 == 0 {
            return;
        }
        let error = abort(&rank, &[0, 2], &options()).unwrap_err();
        match &error {
            Error::Aborted { by: 3, .. } if rank.rank == 1 => {}
            Error::Backend { code: 2, .. } if rank.rank == 3 => {}
            _ => panic!("{error}"),
        }
        together.wait();
        assert_left(&abort(&rank, &[0, 2], &options()).unwrap(), &rank, rank.rank / 2, &[1, 3]);
    });
}

/// One rank detects an error, and one waits in a call. The third is not in a call, and has not
/// detected anything.
#[test]
fn ranks_that_have_not_detected_the_failure_abandon_the_group_too() {
    let (devices, failed) = (devices(3), Barrier::new(2));
    control().plan_answer(devices[0], c"ncclAllReduce", 1, ncclResult_t(99));
    world(&devices, |rank| {
        assert_eq!(sum(&rank.comm, &rank, 1, &options()).unwrap(), 3);
        if rank.rank < 2 {
            assert!(sum(&rank.comm, &rank, 1, &options()).is_err());
        }
        // Otherwise the third may end the group before the call that fails.
        if rank.rank != 1 {
            failed.wait();
        }
        // No rank is excluded, because all take part.
        let all = abort(&rank, &[], &options()).unwrap();
        assert_left(&all, &rank, rank.rank, &[0, 1, 2]);
        let error = rank.comm.run(Call::Barrier, &options()).unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
    });
}

#[test]
fn a_call_that_hangs_elsewhere_ends_when_another_rank_shrinks() {
    let devices = devices(3);
    let began = Instant::now();
    world(&devices, |rank| {
        assert_eq!(sum(&rank.comm, &rank, 1, &options()).unwrap(), 3);
        match rank.rank {
            0 => {
                let error = sum(&rank.comm, &rank, 1, &options()).unwrap_err();
                assert!(matches!(error.root_cause(), Error::Aborted { by: 1, .. }), "{error}");
            }
            1 => thread::sleep(SHORT),
            _ => return,
        }
        assert_left(&abort(&rank, &[2], &options()).unwrap(), &rank, rank.rank, &[0, 1]);
    });
    assert!(began.elapsed() < SOON / 2);
}

#[test]
fn ranks_that_exclude_different_ranks_get_an_error_and_can_retry() {
    let together = Barrier::new(3);
    world(&devices(4), |rank| {
        if rank.rank == 3 {
            return rank.comm.abort("its data is gone");
        }
        let without: &[usize] = if rank.rank == 2 { &[3, 1] } else { &[3] };
        let error = abort(&rank, without, &options()).unwrap_err();
        let Error::Invalid(Invalid::Setting { value, reason, .. }) = &error else { panic!("{error}") };
        assert_eq!(value, "[3]");
        assert!(reason.contains("rank 0 says that, and rank 2 says [1, 3]"), "{reason}");
        together.wait();
        assert_left(&abort(&rank, &[3], &options()).unwrap(), &rank, rank.rank, &[0, 1, 2]);
    });
}

#[test]
fn a_rank_lost_during_a_shrink_is_named_and_excluded_from_the_next() {
    let together = Barrier::new(2);
    world(&devices(4), |rank| {
        match rank.rank {
            2 => return,
            0 => return rank.comm.abort("its data is gone"),
            _ => {}
        }
        let error = abort(&rank, &[0], &options()).unwrap_err();
        // The rank in the middle is the leader.
        let is_named = match &error {
            Error::PeerLost { peer: 2, during: During::Rendezvous, .. } => rank.rank == 1,
            Error::Aborted { by: 1, reason } => rank.rank == 3 && reason.contains("rank 2"),
            _ => false,
        };
        assert!(is_named, "{error}");
        together.wait();
        assert_left(&abort(&rank, &[2, 0], &options()).unwrap(), &rank, rank.rank / 2, &[1, 3]);
    });
}

#[test]
fn groups_made_of_a_group_shrink_by_themselves() {
    world(&devices(3), |mut rank| {
        let group = rank.comm.duplicate(&options()).unwrap();
        let small = rank.comm.shrink(&[2], ShrinkMode::Abort, &options());
        if rank.rank == 2 {
            assert!(matches!(small, Err(Error::Invalid(_))));
            assert_eq!(sum(&*group, &rank, 1, &options()).unwrap(), 3);
            return;
        }
        assert_eq!(
            sum(&*group, &rank, 1, &options()).unwrap(),
            3,
            "groups have nothing to do with each other"
        );
        // A subgroup of a subgroup.
        rank.comm = small.unwrap();
        rank.comm.abort("enough");
        let again = abort(&rank, &[], &options()).unwrap();
        assert_eq!(sum(&again, &rank, 1, &options()).unwrap(), 2);
    });
}

//! Notices over the communicator for the host, about failures that NCCL does not report.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, Call, CallOptions, Communicator, Counts, During, Error, Groups, ReduceOp, Result};
use comm_nccl::Cuda;
use nccl_sys::ncclResult_t;

use crate::common::{Rank, SOON, control, devices, options, within, world_over_host};

fn over_host<T: Send>(size: usize, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    world_over_host(&devices(size), body)
}

/// Reduces `count` elements and waits for the device.
fn sum(comm: &dyn Communicator<Cuda>, rank: &Rank, count: usize, options: &CallOptions) -> Result<()> {
    let mut buffer = rank.buffer(&vec![1.0_f32; count]);
    comm.run(Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum }, options)?;
    buffer.to_vec().map(drop)
}

/// The root cause of a failed copy of a result.
fn cause(outcome: Result<()>) -> Error {
    outcome.unwrap_err().root_cause().clone()
}

#[track_caller]
fn assert_desync(error: &Error, rank: usize, calls: [&str; 2]) {
    let Error::Desync(desync) = error else { panic!("{error}") };
    let told = [&desync.ours, &desync.theirs].map(|call| call.as_ref().unwrap().to_string());
    assert_eq!((desync.rank, desync.peer, desync.sequence), (rank, 1 - rank, 2));
    assert_eq!(told, [calls[rank], calls[1 - rank]]);
}

#[test]
fn ranks_in_different_calls_get_an_error_with_both_calls() {
    let began = Instant::now();
    let errors = over_host(2, |rank| {
        sum(&rank.comm, &rank, 1, &options()).unwrap();
        cause(sum(&rank.comm, &rank, 3 + rank.rank, &options()))
    });
    let calls = ["all_reduce(sum, 3 x f32, nccl)", "all_reduce(sum, 4 x f32, nccl)"];
    for (rank, error) in errors.iter().enumerate() {
        assert_desync(error, rank, calls);
    }
    assert!(began.elapsed() < SOON / 2, "long before the deadline");
}

/// A root completes its part before others begin, so that its call appears to be correct.
#[test]
fn a_rank_that_has_gone_on_compares_its_past() {
    let errors =
        over_host(2, |rank| {
            sum(&rank.comm, &rank, 1, &options()).unwrap();
            if rank.rank == 0 {
                let message = rank.buffer(&[1_u8]);
                let buffers: Buffers<'_, Cuda> = Buffers::SendOnly(message.view());
                drop(rank.comm.run(
                    Call::Reduce { root: 1, buffers, op: ReduceOp::Max },
                    &within(Duration::from_secs(2)),
                ));
            }
            cause(sum(&rank.comm, &rank, 5, &within(Duration::from_secs(2))))
        });
    for error in errors {
        let named = error.to_string();
        assert!(named.contains("reduce(max, root 1") && named.contains("all_reduce(sum, 5"), "{named}");
    }
}

#[test]
fn a_timeout_names_the_ranks_that_did_not_arrive() {
    let timeout = Duration::from_millis(800);
    let errors = over_host(4, |rank| {
        sum(&rank.comm, &rank, 1, &options()).unwrap();
        if rank.rank % 2 == 1 {
            thread::sleep(2 * timeout);
            return None;
        }
        Some(cause(sum(&rank.comm, &rank, 1, &within(timeout))))
    });
    let errors: Vec<Error> = errors.into_iter().flatten().collect();
    let named = errors.iter().any(|error| {
        let Error::Timeout { waiting_for, during: During::Call { sequence: 2, .. }, .. } = error else {
            return false;
        };
        waiting_for == &[1, 3]
    });
    assert!(named, "{errors:?}");
}

#[test]
fn an_abort_ends_the_calls_of_all_ranks() {
    let began = Instant::now();
    over_host(3, |rank| {
        sum(&rank.comm, &rank, 1, &options()).unwrap();
        if rank.rank == 1 {
            thread::sleep(Duration::from_millis(100));
            rank.comm.abort("enough");
            return;
        }
        let error = cause(sum(&rank.comm, &rank, 1, &options()));
        assert!(matches!(&error, Error::Aborted { by: 1, reason } if reason.contains("enough")), "{error}");
    });
    assert!(began.elapsed() < SOON / 2, "long before the deadline");
}

#[test]
fn a_failure_ends_the_calls_of_all_ranks_with_its_cause() {
    let devices = devices(2);
    control().plan_answer(devices[1], c"ncclAllReduce", 1, ncclResult_t(99));
    world_over_host(&devices, |rank| {
        sum(&rank.comm, &rank, 1, &options()).unwrap();
        let error = cause(sum(&rank.comm, &rank, 1, &options()));
        if rank.rank == 1 {
            assert!(matches!(error, Error::Backend { code: 99, .. }), "{error}");
        } else {
            assert!(
                matches!(&error, Error::Aborted { by: 1, reason } if reason.contains("code 99")),
                "{error}"
            );
        }
    });
}

#[test]
fn groups_are_apart_from_their_parent() {
    let errors = over_host(2, |rank| {
        let group = rank.comm.duplicate(&options()).unwrap();
        sum(&*group, &rank, 1, &options()).unwrap();
        let error = cause(sum(&*group, &rank, 3 + rank.rank, &options()));
        sum(&rank.comm, &rank, 7, &options()).unwrap();
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        let Error::Desync(desync) = error else { panic!("{error}") };
        assert_eq!(desync.rank, rank);
    }
}

/// Not all ranks send messages, so they do not count as calls that all ranks make.
#[test]
fn messages_do_not_count_as_calls_of_all() {
    let errors = over_host(3, |rank| {
        for _ in 0..3 {
            let mut buffer = rank.zeros::<u8>(4);
            match rank.rank {
                0 => rank.comm.send(1, buffer.view(), &options()).unwrap(),
                1 => rank.comm.recv(0, buffer.view_mut(), &options()).unwrap(),
                _ => {}
            }
        }
        // The last rank is late, so that the others query the state of the ranks, and find no
        // failure.
        thread::sleep(Duration::from_millis(if rank.rank == 2 { 1500 } else { 0 }));
        let (send, mut recv) = (rank.zeros::<u8>(1), rank.zeros::<u8>(3));
        let buffers = Buffers::Separate { send: send.view(), recv: recv.view_mut() };
        rank.comm.run(Call::AllGather { buffers, counts: Counts::Equal }, &options()).unwrap();
        rank.comm.run(Call::Barrier, &options())
    });
    assert!(errors.iter().all(Result::is_ok), "{errors:?}");
}

//! Leaving a group: the last calls are compared, and ranks that do not leave are named.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{virtual_world, world};
use comm_core::{Comm, Error, Invalid, Loss, ReduceOp, Result};
use comm_ring::RingConfig;
use comm_sim::in_process::InProcessConfig;
use comm_sim::network::VirtualClock;

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm, &VirtualClock) -> R + Sync) -> Vec<R> {
    virtual_world(ranks, 0, &RingConfig::default(), rank)
}

/// Returns the results of the last call and of `finalize` on every rank.
fn finalized(ranks: usize, last: impl Fn(&Comm) -> Result<()> + Sync) -> Vec<(bool, Error)> {
    let ends = run(ranks, |comm, _| {
        comm.barrier().unwrap();
        let call = last(&comm);
        (call.is_ok(), comm.finalize().err().or(call.err()))
    });
    ends.into_iter()
        .map(|(is_ok, error)| (is_ok, error.expect("every rank must detect the mismatch")))
        .collect()
}

/// The calls of both ranks of a mismatch, in the order of their ranks.
fn calls_of(error: &Error) -> Vec<String> {
    let Error::Desync(desync) = error.root_cause() else { panic!("expected a mismatch, got: {error}") };
    let mut calls = [(desync.rank, &desync.ours), (desync.peer, &desync.theirs)];
    calls.sort_by_key(|(rank, _)| *rank);
    calls.into_iter().map(|(rank, call)| format!("{rank}: {}", call.as_ref().unwrap())).collect()
}

#[test]
fn unlike_roots_of_the_last_call_are_found_when_ranks_finalize() {
    for ranks in [2, 3, 5, 8] {
        let broadcast = finalized(ranks, |comm| comm.broadcast(comm.rank(), &mut [comm.rank() as f32; 4]));
        let scatter =
            finalized(ranks, |comm| comm.scatter(comm.rank(), &vec![1_u8; 4 * ranks], &mut [0_u8; 4]));
        for (name, ends) in [("broadcast", broadcast), ("scatter", scatter)] {
            for (rank, (_, error)) in ends.iter().enumerate() {
                for call in calls_of(error) {
                    let (rank, call) = call.split_once(": ").unwrap();
                    assert!(call.starts_with(&format!("{name}(root {rank}, ")), "{call}");
                }
                assert_eq!(calls_of(error).len(), 2, "rank {rank}: {error}");
            }
        }
    }
}

#[test]
fn ranks_that_gather_at_different_roots_all_get_the_mismatch() {
    let ends = finalized(3, |comm| {
        let root = comm.rank();
        comm.with_timeout(Duration::from_secs(1)).gather(root, &[1_u8; 4], &mut [0_u8; 12])
    });
    for (_, error) in ends {
        assert!(calls_of(&error).iter().all(|call| call.contains("gather(root")), "{error}");
    }
}

#[test]
fn a_rank_that_finalizes_a_call_too_early_reads_that_it_left() {
    let errors = run(2, |comm, _| {
        comm.barrier().unwrap();
        match comm.rank() {
            0 => comm.all_reduce(&mut [1_u32; 4], ReduceOp::Sum).unwrap_err(),
            _ => comm.finalize().unwrap_err(),
        }
    });
    let [stayed, left] = &errors[..] else { panic!("two ranks") };
    let stayed = stayed.to_string();
    assert!(stayed.starts_with("rank 1 was lost during all_reduce(sum, 4 x u32,"), "{stayed}");
    assert!(stayed.ends_with("call 2: it closed its communicator after call 1"), "{stayed}");
    assert_eq!(left.to_string(), "aborted by rank 0: this rank closed its communicator after call 1");
}

#[test]
fn finalizing_ends_a_group_whose_ranks_made_the_same_calls() {
    for ranks in [1, 2, 3, 5, 8] {
        world(ranks, &InProcessConfig::default(), &RingConfig::default(), |comm| {
            let mut sum = [1_u32; 10];
            let work = comm.all_reduce_async(vec![1_u32; 1000], ReduceOp::Sum).unwrap();
            let clone = comm.clone();
            comm.clone().finalize().unwrap();
            assert_eq!(work.wait().unwrap(), vec![ranks as u32; 1000]);
            let error = clone.all_reduce(&mut sum, ReduceOp::Sum).unwrap_err();
            assert!(matches!(error.root_cause(), Error::Invalid(Invalid::Finalized)), "{error}");
            assert_eq!(sum, [1; 10]);
        });
    }
}

#[test]
fn a_rank_that_makes_a_call_while_others_finalize_gets_an_error() {
    let errors = run(3, |comm, _| {
        if comm.rank() == 1 { comm.barrier().unwrap_err() } else { comm.clone().finalize().unwrap_err() }
    });
    for error in [&errors[0], &errors[2]] {
        assert!(matches!(error, Error::Aborted { by: 1, .. } | Error::PeerLost { .. }), "{error}");
    }
    assert!(matches!(errors[1], Error::PeerLost { loss: Loss::Left { after: 0 }, .. }), "{}", errors[1]);
}

/// Unlike one that drops its communicator, which reports the death instead.
#[test]
fn a_rank_that_leaves_after_a_death_has_departed() {
    let departed = run(3, |comm, clock| {
        clock.sleep(Duration::from_millis(10) * (2 - comm.rank() as u32));
        match comm.rank() {
            0 => {}
            1 => {
                comm.clone().leave();
                let error = comm.barrier().unwrap_err();
                assert!(matches!(error.root_cause(), Error::Invalid(Invalid::Finalized)), "{error}");
            }
            _ => clock.die(),
        }
        comm.departed()
    });
    assert_eq!(departed[0], [1]);
}

#[test]
fn a_rank_whose_peers_have_left_gets_the_mismatch_error() {
    let errors = run(3, |comm, clock| {
        let root = if comm.rank() == 2 { 2 } else { 0 };
        let mut buffer = [comm.rank() as u8; 4];
        let sent = comm.with_algorithm("binomial").broadcast(root, &mut buffer);
        if comm.rank() == 2 {
            clock.sleep(Duration::from_secs(1));
            return sent.and_then(|()| comm.barrier()).err();
        }
        None
    });
    assert_eq!(calls_of(errors[2].as_ref().unwrap()).len(), 2);
}

/// A rank that only sends completes its call before another can detect the mismatch, so a later
/// call detects it.
#[test]
fn a_mismatch_with_a_call_that_only_sends_names_that_call() {
    for seed in 0..20 {
        let errors = virtual_world(4, seed, &RingConfig::default(), |comm, _| {
            // Rank 3 only sends to rank 0, which waits for the broadcast of rank 1, as rank 2 does.
            let first = match comm.rank() {
                3 => comm.gather(0, &[1_u8; 4], &mut [0; 16]),
                _ => comm.broadcast(1, &mut [0_u64; 1]),
            };
            let second = || match comm.rank() {
                3 => comm.barrier(),
                _ => comm.broadcast(1, &mut [0_u8; 30]),
            };
            first.and_then(|()| second()).and_then(|()| comm.barrier()).unwrap_err()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let text = error.root_cause().to_string();
            assert!(text.contains("with sequence number 1:"), "rank {rank}: {text}");
            assert!(text.contains("gather(root 0") && text.contains("broadcast(root 1, 1 x u64"), "{text}");
        }
    }
}

//! A barrier that some ranks do not reach names exactly these, on every rank that reached it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::virtual_world;
use comm_core::{Comm, Error, Result};
use comm_ring::RingConfig;
use comm_sim::network::VirtualClock;

const HOUR: Duration = Duration::from_secs(3600);
const SEEDS: u64 = 20;

fn waiting_for(error: &Error) -> &[usize] {
    match error.root_cause() {
        Error::Timeout { waiting_for, .. } => waiting_for,
        other => panic!("expected a timeout, got: {other}"),
    }
}

/// Every rank but the late ones calls `barrier` and must name them. The late ranks call it once all
/// others have failed, and get the same error.
fn with_late_ranks(
    ranks: usize,
    late: &[usize],
    config: &RingConfig,
    barrier: impl Fn(&Comm, &VirtualClock) -> Result<()> + Sync,
) {
    for seed in 0..SEEDS {
        let errors = virtual_world(ranks, seed, config, |comm, clock| {
            if late.contains(&comm.rank()) {
                clock.sleep(HOUR * 2);
            }
            let error = barrier(&comm, clock).unwrap_err();
            // Stays until all others have failed.
            clock.sleep(HOUR * 3);
            error
        });
        for (rank, error) in errors.iter().enumerate() {
            assert_eq!(waiting_for(error), late, "seed {seed}, rank {rank} of {ranks}: {error}");
        }
    }
}

/// Sets of late ranks: one at either end, several, several with rank 0, and all but one.
fn late_sets(ranks: usize) -> Vec<Vec<usize>> {
    let mut sets = vec![vec![0], vec![ranks - 1], (1..ranks).collect(), (0..ranks - 1).collect()];
    if ranks > 3 {
        sets.extend([vec![1, ranks - 2], vec![0, 2]]);
    }
    sets.dedup();
    sets
}

fn talkative() -> RingConfig {
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    config
}

#[test]
fn a_barrier_that_every_rank_reaches_succeeds() {
    for ranks in [1, 2, 3, 5, 8, 13] {
        virtual_world(ranks, 0, &RingConfig::default(), |comm, _| {
            for _ in 0..20 {
                comm.monitored_barrier(Duration::from_secs(20)).unwrap();
                comm.with_algorithm("recursive_doubling").barrier().unwrap();
            }
        });
    }
}

#[test]
fn no_rank_leaves_before_the_last_one_connects() {
    for seed in 0..SEEDS {
        virtual_world(5, seed, &RingConfig::default(), |comm, clock| {
            if comm.rank() == 3 {
                clock.sleep(Duration::from_millis(150));
            }
            comm.monitored_barrier(Duration::from_secs(20)).unwrap();
            assert!(clock.elapsed() >= Duration::from_millis(150));
        });
    }
}

#[test]
fn the_late_ranks_are_named_by_all() {
    for ranks in [2, 3, 5, 8] {
        for late in late_sets(ranks) {
            with_late_ranks(ranks, &late, &talkative(), |comm, _| {
                comm.monitored_barrier(Duration::from_millis(300))
            });
        }
    }
}

#[test]
fn a_plain_barrier_names_them_too() {
    for late in late_sets(8) {
        with_late_ranks(8, &late, &talkative(), |comm, _| {
            comm.with_timeout(Duration::from_millis(300)).with_algorithm("recursive_doubling").barrier()
        });
    }
}

#[test]
fn rank_0_knows_the_connected_ranks_without_a_message() {
    let mut silent = RingConfig::default();
    (silent.announce_after, silent.diagnosis) = (HOUR, Duration::ZERO);
    // With a small window, the first late rank keeps the messages of the others waiting.
    silent.window = 2;
    for late in [vec![1], vec![2, 3], vec![1, 4]] {
        with_late_ranks(5, &late, &silent, |comm, _| {
            comm.monitored_barrier(if comm.rank() == 0 { Duration::from_secs(1) } else { HOUR })
        });
    }
}

#[test]
fn a_rank_whose_deadline_passes_first_does_not_blame_rank_0() {
    with_late_ranks(4, &[2], &talkative(), |comm, _| {
        comm.monitored_barrier(if comm.rank() == 1 { Duration::from_millis(300) } else { HOUR })
    });
}

#[test]
fn a_rank_that_has_arrived_without_announcing_it_is_not_named() {
    let mut slow = RingConfig::default();
    (slow.announce_after, slow.diagnosis) = (HOUR, Duration::from_secs(1));
    with_late_ranks(4, &[2], &slow, |comm, _| {
        comm.monitored_barrier(if comm.rank() == 1 { Duration::from_secs(2) } else { HOUR })
    });
}

#[test]
fn a_plain_barrier_is_another_call() {
    let errors = virtual_world(2, 0, &talkative(), |comm, _| {
        let result = match comm.rank() {
            0 => comm.monitored_barrier(HOUR),
            _ => comm.with_algorithm("recursive_doubling").barrier(),
        };
        result.unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.contains("barrier(linear)") && error.contains("barrier(recursive_doubling)"),
            "{error}"
        );
    }
}

#[test]
fn naming_late_ranks_takes_no_longer_than_the_timeout() {
    let mut config = talkative();
    config.diagnosis = Duration::from_secs(1);
    let timeout = Duration::from_secs(4);
    with_late_ranks(3, &[2], &config, |comm, clock| {
        let start = clock.elapsed();
        let result = comm.monitored_barrier(timeout);
        let taken = clock.elapsed() - start;
        assert!(taken <= timeout, "{taken:?}");
        result
    });
}

//! The counters of calls, in virtual time.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::virtual_world;
use comm_core::{CallMetrics, Collective, Metrics, ReduceOp};
use comm_ring::RingConfig;

const LATE: Duration = Duration::from_millis(300);
const ROUNDS: u32 = 5;

fn calls(metrics: &Metrics, collective: Collective) -> &CallMetrics {
    metrics.calls.iter().find(|calls| calls.collective == collective).unwrap()
}

/// Three ranks make calls, for which rank 2 is late.
fn with_a_late_rank() -> Vec<Metrics> {
    virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        for _ in 0..ROUNDS {
            if comm.rank() == 2 {
                clock.sleep(LATE);
            }
            let mut gathered = if comm.rank() == 0 { vec![0; 15] } else { Vec::new() };
            comm.gather(0, &[1_u32; 5], &mut gathered).unwrap();
            comm.all_reduce(&mut [1.0_f64; 7], ReduceOp::Sum).unwrap();
        }
        comm.metrics().unwrap()
    })
}

#[test]
fn calls_and_bytes_are_counted_by_collective_and_algorithm() {
    for metrics in with_a_late_rank() {
        let rounds = u64::from(ROUNDS);
        let sums = calls(&metrics, Collective::AllReduce);
        assert_eq!((sums.calls, sums.bytes, sums.durations.total()), (rounds, rounds * 7 * 8, rounds));
        let gathers = calls(&metrics, Collective::Gather);
        assert_eq!((gathers.calls, gathers.bytes), (rounds, rounds * 3 * 5 * 4));
        assert!(!sums.algorithm.is_empty() && !gathers.algorithm.is_empty());
        assert_eq!((metrics.failures, &metrics.members[..]), (0, &[0, 1, 2][..]));
    }
}

#[test]
fn the_time_of_calls_includes_the_wait_for_a_late_rank() {
    let all = with_a_late_rank();
    let expected = LATE * ROUNDS;
    // The root of the gather waits in it, and rank 1 in the sum.
    for (rank, collective) in [(0, Collective::Gather), (1, Collective::AllReduce)] {
        let calls = calls(&all[rank], collective);
        assert!(calls.time >= expected && calls.time < expected + LATE, "rank {rank}: {:?}", calls.time);
        let median = calls.durations.quantile(0.5).unwrap();
        assert!(median >= LATE && median < 2 * LATE, "{median:?}");
    }
    let late: Duration = all[2].calls.iter().map(|calls| calls.time).sum();
    assert!(late < LATE, "{late:?}");
}

#[test]
fn the_rank_for_which_a_call_waits_is_counted() {
    let all = with_a_late_rank();
    let expected = LATE * ROUNDS;
    let [_, other, late] = all[0].waited_for[..] else { unreachable!("three ranks") };
    assert!(late >= expected && late < expected + LATE, "{late:?}");
    assert!(other < LATE, "{other:?}");
    assert!(all[2].waited_for.iter().sum::<Duration>() < LATE, "{:?}", all[2].waited_for);
}

#[test]
fn short_calls_that_do_not_wait_count_as_long_as_those_that_are_timed() {
    let all = virtual_world(1, 0, &RingConfig::default(), |comm, _| {
        for _ in 0..1000 {
            comm.all_reduce(&mut [1_u8], ReduceOp::Sum).unwrap();
            comm.barrier().unwrap();
        }
        comm.metrics().unwrap()
    });
    for collective in [Collective::AllReduce, Collective::Barrier] {
        let calls = calls(&all[0], collective);
        assert_eq!((calls.calls, calls.durations.total()), (1000, 1000));
    }
}

#[test]
fn a_group_counts_its_own_calls_and_a_failure_is_counted() {
    let all = virtual_world(2, 0, &RingConfig::default(), |comm, _| {
        let group = comm.new_group(&[1, 0]).unwrap().unwrap();
        (0..3).for_each(|_| group.barrier().unwrap());
        if comm.rank() == 0 {
            comm_core::Communicator::abort(group.communicator(), "enough");
        }
        group.barrier().unwrap_err();
        (comm.metrics().unwrap(), group.metrics().unwrap())
    });
    for (world, group) in all {
        assert!(world.calls.iter().all(|calls| calls.collective != Collective::Barrier));
        assert_eq!((calls(&group, Collective::Barrier).calls, &group.members[..]), (3, &[1, 0][..]));
        assert_eq!((world.failures, group.failures), (0, 1));
    }
}

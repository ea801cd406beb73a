//! Prefix reductions: the order of their sums, and refusals.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{small_segments, world};
use comm_core::{Collective, ReduceOp, ReduceOrder};
use comm_ring::RingConfig;
use comm_ring::schedule::Algorithm;
use comm_sim::in_process::InProcessConfig;

/// Numbers whose sums are rounded, so that the order of addition is visible.
fn rough(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| comm_sim::exact::fraction(rank, at)).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn repetitions_have_the_same_bits() {
    for ranks in [2, 5, 8] {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            for row in Algorithm::for_collective(Collective::Scan) {
                let once = || {
                    let mut buffer = rough(comm.rank(), 300);
                    comm.with_algorithm(row.name).scan(&mut buffer, ReduceOp::Sum).unwrap();
                    bits(&buffer)
                };
                let first = once();
                assert!((0..5).all(|_| once() == first), "{} of {ranks}", row.name);
            }
        });
    }
}

#[test]
fn in_deterministic_order_ranks_are_added_one_after_the_other() {
    for ranks in [1, 2, 3, 5, 8, 13] {
        world(ranks, &InProcessConfig::default(), &small_segments(), |comm| {
            let ordered = comm.with_reduce_order(ReduceOrder::Deterministic);
            for len in [1, 300] {
                let before = |rank: usize| {
                    let all = (0..rank).map(|rank| rough(rank, len));
                    all.reduce(|sum, next| sum.iter().zip(next).map(|(a, b)| a + b).collect())
                };
                let mut buffer = rough(comm.rank(), len);
                ordered.scan(&mut buffer, ReduceOp::Sum).unwrap();
                assert_eq!(bits(&buffer), bits(&before(comm.rank() + 1).unwrap()), "{len} of {ranks}");
                let mut buffer = rough(comm.rank(), len);
                ordered.exscan(&mut buffer, ReduceOp::Sum).unwrap();
                let expected = before(comm.rank()).unwrap_or_else(|| rough(0, len));
                assert_eq!(bits(&buffer), bits(&expected), "{len} of {ranks}");
            }
            let unordered = ordered.with_algorithm("recursive_doubling");
            assert!(!unordered.scan(&mut [1.0_f32], ReduceOp::Sum).unwrap_err().is_fatal());
        });
    }
}

#[test]
fn a_refused_scan_has_touched_nothing_and_the_next_one_works() {
    world(3, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let mut buffer = [4.0_f32; 6];
        for refused in [
            comm.scan(&mut buffer, ReduceOp::Avg),
            comm.exscan(&mut buffer, ReduceOp::Avg),
            comm.scan(&mut buffer, ReduceOp::BitOr),
            comm.scan_into(&[1.0; 5], &mut buffer, ReduceOp::Sum),
            comm.exscan_into(&[1.0; 7], &mut buffer, ReduceOp::Sum),
            comm.with_algorithm("magic").scan(&mut buffer, ReduceOp::PreMulSum(0.5)),
            comm.with_algorithm("magic").exscan(&mut buffer, ReduceOp::PreMulSum(0.5)),
        ] {
            assert!(!refused.unwrap_err().is_fatal());
        }
        assert_eq!(buffer, [4.0; 6]);
        comm.scan(&mut buffer, ReduceOp::PreMulSum(0.5)).unwrap();
        assert_eq!(buffer, [2.0 * (comm.rank() + 1) as f32; 6]);
    });
}

#[test]
fn the_algorithm_follows_the_length() {
    let choice = |bytes: usize| {
        let tuning = RingConfig::default().tuning(comm_core::LinkModel::uniform(
            comm_core::Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 },
            1e-10,
        ));
        let (collective, order) = (Collective::Scan, ReduceOrder::Any);
        let question = comm_ring::choose::CallShape::new(collective).ranks(8).bytes(bytes).order(order);
        comm_ring::choose::choose(&question, None, &tuning).unwrap().algorithm.name
    };
    assert_eq!((choice(8), choice(64 << 20)), ("recursive_doubling", "chain"));
}

//! Collectives over shared memory are exact, also when rings are far smaller than what goes through
//! them.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use comm_core::{Comm, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::SharedMemoryFabric;

fn communicator(fabric: SharedMemoryFabric) -> Comm {
    let timeout = Duration::from_secs(60);
    let communicator = RingCommunicator::new(fabric, RingConfig::default(), timeout).unwrap();
    Comm::new(communicator).with_timeout(timeout)
}

/// Small whole numbers, in a pattern that no two ranks share: every sum is exact.
fn contribution(rank: usize, at: usize) -> u32 {
    let mixed = (rank as u64 * 0x9e37 + at as u64 * 0x79b9 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    1 + (mixed >> 40) as u32 % 1000
}

fn all_reduce(ranks: usize, ring_bytes: usize, lengths: &[usize]) {
    let sums = comm_sim::run_each(common::world(ranks, ring_bytes), |fabric| {
        let comm = communicator(fabric);
        let reduce = |len: &usize| {
            let mut floats: Vec<f32> = (0..*len).map(|at| contribution(comm.rank(), at) as f32).collect();
            let mut bytes: Vec<u8> = (0..*len).map(|at| contribution(comm.rank(), at) as u8).collect();
            comm.all_reduce(&mut floats, ReduceOp::Sum).unwrap();
            comm.all_reduce(&mut bytes, ReduceOp::Sum).unwrap();
            (floats, bytes)
        };
        lengths.iter().map(reduce).collect::<Vec<_>>()
    });
    for (at, len) in lengths.iter().enumerate() {
        let sum = |at: usize| (0..ranks).map(|rank| contribution(rank, at)).sum::<u32>();
        let floats: Vec<f32> = (0..*len).map(|at| sum(at) as f32).collect();
        let bytes: Vec<u8> = (0..*len).map(|at| sum(at) as u8).collect();
        for of_rank in &sums {
            assert!(of_rank[at].0 == floats && of_rank[at].1 == bytes, "{ranks} ranks, {len} elements");
        }
    }
}

#[test]
fn all_reduce_is_exact_through_tiny_rings() {
    for ranks in [1, 2, 3, 5, 8] {
        all_reduce(ranks, 4096, &[0, 1, ranks - 1, ranks, ranks + 1, 1023, 1024, 1025, 100_003]);
    }
}

#[test]
fn all_reduce_of_large_data_is_exact() {
    for ranks in [2, 3, 5, 8] {
        all_reduce(ranks, 4096, &[300_007]);
        all_reduce(ranks, 256 * 1024, &[300_007]);
    }
    all_reduce(2, 1 << 20, &[3_000_001]);
}

/// Groups have channels of their own, between some of the ranks, in another order.
#[test]
fn groups_of_some_ranks_reduce_among_themselves() {
    for ranks in [2, 3, 5, 8] {
        comm_sim::run_each(common::world(ranks, 4096), |fabric| {
            let comm = communicator(fabric);
            let half = comm.split(Some(comm.rank() as u64 % 2), -(comm.rank() as i64)).unwrap().unwrap();
            let members: Vec<usize> = (0..ranks).filter(|rank| rank % 2 == comm.rank() % 2).collect();
            for len in [1, 5000] {
                let own = |rank: usize| (0..len).map(move |at| contribution(rank, at) as f32);
                let mut sums: Vec<f32> = own(comm.rank()).collect();
                half.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
                let sum = |at: usize| members.iter().map(|rank| contribution(*rank, at)).sum::<u32>();
                assert!(sums == (0..len).map(|at| sum(at) as f32).collect::<Vec<_>>());
            }
            comm.barrier().unwrap();
        });
    }
}

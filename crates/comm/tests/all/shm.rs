//! Tests of the public API over shared memory.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::world_with;
use comm::{Comm, Config, ReduceOp, TransportKind};

fn over_memory<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let adjust = |config: &mut Config| {
        config.transport = TransportKind::SharedMemory;
        config.shm.ring_bytes = 4096;
    };
    world_with(ranks, adjust, rank)
}

#[test]
fn calls_messages_and_groups_work_over_tiny_rings() {
    for ranks in [1, 2, 3, 5, 8] {
        over_memory(ranks, |comm| {
            let (rank, len) = (comm.rank(), 30_000);
            let mut sum: Vec<i64> = (0..len).map(|at| (rank * len + at) as i64).collect();
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            let expected = (0..len).map(|at| (0..ranks).map(|rank| (rank * len + at) as i64).sum());
            assert_eq!(sum, expected.collect::<Vec<i64>>());

            let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let (message, mut received) = (vec![rank as u16; len], vec![0_u16; len]);
            comm.send_recv((next, 7), &message, (before, 7), &mut received)
                .unwrap()
                .exactly(received.len())
                .unwrap();
            assert_eq!(received, vec![before as u16; len]);

            let half = comm.split(Some(rank as u64 % 2), 0).unwrap().unwrap();
            let mut members = [1_u32];
            half.all_reduce(&mut members, ReduceOp::Sum).unwrap();
            assert_eq!(members[0] as usize, half.size());
        });
    }
}

#[test]
fn a_large_sum_is_exact() {
    over_memory(4, |comm| {
        let mut buffer = vec![(comm.rank() + 1) as f32; 1_000_003];
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(buffer.iter().all(|&element| element == 10.0));
    });
}

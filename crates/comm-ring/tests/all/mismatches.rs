//! Every pair of different calls ends in a desync that names both, on every rank.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::virtual_world;
use comm_core::{Comm, Error, ReduceOp, Result};
use comm_ring::RingConfig;

/// The number of correct calls before the mismatch.
const GOOD: usize = 20;

/// A call, and its description in errors.
type Call = (&'static str, fn(&Comm) -> Result<()>);

/// Calls that all differ. Buffers are long enough for any world here.
const CALLS: [Call; 27] = [
    ("all_reduce(sum, 8 x f32", |comm| comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)),
    ("all_reduce(max, 8 x f32", |comm| comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Max)),
    ("all_reduce(sum, 8 x i32", |comm| comm.all_reduce(&mut [1_i32; 8], ReduceOp::Sum)),
    ("all_reduce(sum, 9 x f32", |comm| comm.all_reduce(&mut [1.0_f32; 9], ReduceOp::Sum)),
    ("all_reduce(sum, 0 x f32", |comm| comm.all_reduce(&mut [0.0_f32; 0], ReduceOp::Sum)),
    ("all_reduce(sum, 99999 x f32", |comm| comm.all_reduce(&mut vec![0.0_f32; 99999], ReduceOp::Sum)),
    ("reduce(sum, root 0, 8 x f32", |comm| comm.reduce(0, &mut [1.0_f32; 8], ReduceOp::Sum)),
    ("reduce(sum, root 1, 8 x f32", |comm| comm.reduce(1, &mut [1.0_f32; 8], ReduceOp::Sum)),
    ("broadcast(root 0, 8 x f32", |comm| comm.broadcast(0, &mut [1.0_f32; 8])),
    ("broadcast(root 1, 8 x f32", |comm| comm.broadcast(1, &mut [1.0_f32; 8])),
    ("broadcast(root 0, 8 x u32", |comm| comm.broadcast(0, &mut [1_u32; 8])),
    ("all_gather(8 x f32", |comm| comm.all_gather(&[1.0_f32; 8], &mut vec![0.0; 8 * comm.size()])),
    ("gather(root 0, 8 x f32", |comm| comm.gather(0, &[1.0_f32; 8], &mut vec![0.0; 8 * comm.size()])),
    ("gather(root 1, 8 x f32", |comm| comm.gather(1, &[1.0_f32; 8], &mut vec![0.0; 8 * comm.size()])),
    ("gather_v(root 0, 0 x f32", |comm| {
        comm.gather_v(0, &[1.0_f32; 8], &mut vec![0.0; 8 * comm.size()], &vec![8; comm.size()])
    }),
    ("scatter(root 0, 8 x f32", |comm| comm.scatter(0, &vec![1.0_f32; 8 * comm.size()], &mut [0.0; 8])),
    ("reduce_scatter(sum, 8 x f32", |comm| {
        comm.reduce_scatter(&vec![1.0_f32; 8 * comm.size()], &mut [0.0; 8], ReduceOp::Sum)
    }),
    ("all_to_all(8 x f32", |comm| {
        comm.all_to_all(&vec![1.0_f32; 8 * comm.size()], &mut vec![0.0; 8 * comm.size()])
    }),
    ("barrier(", Comm::barrier),
    ("scan(sum, 8 x f32", |comm| comm.scan(&mut [1.0_f32; 8], ReduceOp::Sum)),
    ("exscan(sum, 8 x f32", |comm| comm.exscan(&mut [1.0_f32; 8], ReduceOp::Sum)),
    ("split(", |comm| comm.split(None, 0).map(drop)),
    ("duplicate(", |comm| comm.duplicate().map(drop)),
    ("new_group(extra fingerprint", |comm| comm.new_group(&[0]).map(drop)),
    // These have the same element type and total as the first call, and as each other, so that only
    // the extra fingerprint differs.
    ("all_reduce(sum, 8 x f32, extra fingerprint", |comm| {
        comm.all_reduce_coalesced(&mut [&mut [1.0_f32; 3][..], &mut [1.0; 5]], ReduceOp::Sum)
    }),
    ("all_reduce(sum, 8 x f32, extra fingerprint", |comm| {
        comm.all_reduce_coalesced(&mut [&mut [1.0_f32; 4][..], &mut [1.0; 4]], ReduceOp::Sum)
    }),
    ("all_reduce(sum, 8 x f32, ring", |comm| {
        comm.with_algorithm("ring").all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)
    }),
];

/// One rank makes the second call, all others the first.
fn mismatch(ranks: usize, odd: usize, first: Call, second: Call) {
    let errors = virtual_world(ranks, odd as u64, &RingConfig::default(), |comm, clock| {
        let call = if comm.rank() == odd { second.1 } else { first.1 };
        // A rank that has not left the last barrier yet may get the error there. One that only
        // sends may complete the call before the others detect the mismatch, and gets the error in
        // a later call.
        let barriers = |count: usize| (0..count).try_for_each(|_| comm.barrier());
        let calls = barriers(GOOD).and_then(|()| call(&comm)).and_then(|()| {
            clock.sleep(Duration::from_millis(150));
            barriers(3)
        });
        assert!(clock.elapsed() < Duration::from_secs(1), "{:?}", clock.elapsed());
        calls.expect_err(&format!("{} and {} of {ranks}", first.0, second.0))
    });
    for error in errors {
        let Error::Desync(desync) = error.root_cause() else {
            panic!("{} and {} of {ranks}: {error}", first.0, second.0);
        };
        let text = desync.to_string();
        assert_eq!(desync.sequence, GOOD as u64 + 1, "{text}");
        assert!(text.contains(first.0) && text.contains(second.0), "{} and {}: {text}", first.0, second.0);
    }
}

#[test]
fn every_pair_of_unlike_calls_after_20_good_ones() {
    for (at, first) in CALLS.into_iter().enumerate() {
        for (distance, second) in CALLS[at + 1..].iter().enumerate() {
            // A plain all-reduce may select the ring by itself.
            if at == 0 && second.0.ends_with("ring") {
                continue;
            }
            let ranks = 2 + (at + distance) % 3;
            mismatch(ranks, distance % ranks, first, *second);
        }
    }
}

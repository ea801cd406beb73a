//! Tests of calls beyond 2 GiB, the limit of 32-bit lengths. They need about 9 GiB of memory and
//! half a minute, and are ignored by default:
//! `cargo test --release -p comm-world --test all large -- --ignored`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::world_with;
use comm::ReduceOp;

/// 2 GiB and 4 bytes.
const ELEMENTS: usize = (1 << 29) + 1;

/// A small number, so that sums are exact, which differs at offsets of powers of two.
fn contribution(rank: usize, at: usize) -> f32 {
    ((rank + 1) * (at % 8191) % 4093) as f32
}

fn is_exact(found: &[f32], expected: impl Fn(usize) -> f32) {
    let wrong = found.iter().enumerate().find(|(at, element)| **element != expected(*at));
    assert_eq!(wrong, None);
}

#[test]
#[ignore = "needs 9 GiB of memory"]
fn two_gibibytes_and_four_bytes_in_one_call() {
    world_with(
        2,
        |config| config.timeout = Duration::from_secs(600),
        |comm| {
            let mut buffer: Vec<f32> = (0..ELEMENTS).map(|at| contribution(comm.rank(), at)).collect();
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            is_exact(&buffer, |at| contribution(0, at) + contribution(1, at));
            if comm.rank() == 1 {
                buffer.iter_mut().enumerate().for_each(|(at, element)| *element = contribution(1, at));
            }
            comm.broadcast(1, &mut buffer).unwrap();
            is_exact(&buffer, |at| contribution(1, at));
        },
    );
}

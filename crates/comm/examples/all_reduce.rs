//! The sum and the average of a buffer over all ranks, in `f32` and in `bf16`, and the bandwidth.
//!
//! ```sh
//! commctl run -n 4 -- target/debug/examples/all_reduce
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::time::Instant;

use comm::half::bf16;
use comm::{Comm, Element, ReduceOp};

/// The number of elements of a buffer.
const LEN: usize = 1 << 20;
/// The number of calls that are timed.
const CALLS: u32 = 10;

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    reduce(&comm, |value| value)?;
    reduce(&comm, bf16::from_f32)?;
    comm.finalize()
}

/// Reduces elements of one type, checks every element, and prints the bandwidth on rank 0.
fn reduce<T: Element + PartialEq>(comm: &Comm, convert: fn(f32) -> T) -> comm::Result<()> {
    let (rank, ranks) = (comm.rank() as f32, comm.size() as f32);
    // With up to 16 ranks, bf16 with its 8 significant bits also represents all sums exactly.
    let position = |i: usize| (i % 8) as f32;
    let buffer = |value: &dyn Fn(usize) -> f32| -> Vec<T> { (0..LEN).map(|i| convert(value(i))).collect() };
    let own = buffer(&|i| rank + position(i));

    // The result replaces the buffer on every rank. 0 + 1 + ... + (ranks - 1) is the first term.
    let mut sum = own.clone();
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert!(sum == buffer(&|i| ranks * (ranks - 1.0) / 2.0 + ranks * position(i)), "a sum is wrong");

    let mut average = own.clone();
    comm.all_reduce(&mut average, ReduceOp::Avg)?;
    assert!(average == buffer(&|i| (ranks - 1.0) / 2.0 + position(i)), "an average is wrong");

    // Out of place, so that all calls reduce the same values.
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..CALLS {
        comm.all_reduce_into(&own, &mut sum, ReduceOp::Sum)?;
    }
    let seconds = (start.elapsed() / CALLS).as_secs_f64();

    // As nccl-tests defines it: in the best algorithm every rank sends this part of the buffer.
    let sent = 2.0 * (ranks - 1.0) / ranks * size_of_val(&own[..]) as f32;
    if comm.rank() == 0 {
        let gigabytes = f64::from(sent) / 1e9;
        println!(
            "{}: sums and averages of {ranks} ranks are exact, bus bandwidth {:.2} GB/s",
            T::DTYPE,
            gigabytes / seconds
        );
    }
    Ok(())
}

//! A computation during an all-reduce, and the time that this saves.
//!
//! The all-reduce runs on a thread of the communicator. It saves time if that thread gets a core,
//! or waits for the network: with more ranks than half of the cores of a single host, it saves
//! little.
//!
//! ```sh
//! commctl run -n 4 -- target/debug/examples/overlap
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp};

/// The number of elements of the buffer.
const LEN: usize = 4 << 20;
const ROUNDS: u32 = 5;

/// The sums, and the result of the computation.
type Results = (Vec<f32>, u64);

/// Stands for the work of a program: the number of steps of the Collatz sequences of many numbers.
fn compute() -> u64 {
    let steps = |mut n: u64| {
        let mut steps = 0;
        while n != 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    (1..100_000).map(steps).sum()
}

/// Waits for the all-reduce before it computes.
fn in_turn(comm: &Comm, mut buffer: Vec<f32>) -> comm::Result<Results> {
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    Ok((buffer, compute()))
}

/// Computes during the all-reduce.
fn overlapped(comm: &Comm, buffer: Vec<f32>) -> comm::Result<Results> {
    // The handle owns the buffer until the call has ended, so no one reads half a result.
    let work = comm.all_reduce_async(buffer, ReduceOp::Sum)?;
    let computed = compute();
    Ok((work.wait()?, computed))
}

/// Returns the average time of a round, and checks its results.
fn time(comm: &Comm, round: fn(&Comm, Vec<f32>) -> comm::Result<Results>) -> comm::Result<Duration> {
    let mut time = Duration::ZERO;
    for _ in 0..ROUNDS {
        let buffer = (0..LEN).map(|i| (comm.rank() + i % 100) as f32).collect();
        comm.barrier()?;
        let start = Instant::now();
        let (sums, computed) = round(comm, buffer)?;
        time += start.elapsed();
        let (ranks, of_ranks) = (comm.size(), comm.size() * (comm.size() - 1) / 2);
        let expected = |i: usize| (of_ranks + ranks * (i % 100)) as f32;
        assert!(sums.iter().enumerate().all(|(i, &sum)| sum == expected(i)), "a sum is wrong");
        assert_eq!(computed, 10_753_712);
    }
    Ok(time / ROUNDS)
}

pub(crate) fn main() -> comm::Result<()> {
    let comm = comm::init()?;
    let (in_turn, overlapped) = (time(&comm, in_turn)?, time(&comm, overlapped)?);
    if comm.rank() == 0 {
        let [in_turn, overlapped] = [in_turn, overlapped].map(|time| 1e3 * time.as_secs_f64());
        let saved = in_turn - overlapped;
        println!("in turn {in_turn:.1} ms, overlapped {overlapped:.1} ms, saved {saved:.1} ms");
    }
    comm.finalize()
}

//! Times all-reduces of 32-bit floats, in place, and prints a JSON object per size.
//!
//! ```sh
//! cargo build --release -p comm --example time_all_reduce -p comm-cli
//! target/release/commctl run -n 4 -- target/release/examples/time_all_reduce 4 1024 1048576
//! ```
//!
//! A sample is the time of K back-to-back calls divided by K, where K makes it last at least 20 ms, and the slowest
//! rank's counts.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::{Duration, Instant};

use comm::{Comm, ReduceOp, Result};

const SAMPLES: usize = 15;
const SAMPLE: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes: Vec<usize> = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<_, _>>()?;
    let comm = comm::init()?;
    for bytes in sizes {
        let mut samples = time(&comm, bytes)?;
        if comm.rank() == 0 {
            samples.sort_by(f64::total_cmp);
            let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
            println!(
                r#"{{"collective":"all_reduce","ranks":{},"dtype":"f32","bytes":{bytes},"time_us":{{"p10":{:.3},"p50":{:.3},"p90":{:.3}}}}}"#,
                comm.size(),
                at(0.1),
                at(0.5),
                at(0.9)
            );
        }
    }
    Ok(())
}

/// Microseconds per call, of every sample.
fn time(comm: &Comm, bytes: usize) -> Result<Vec<f64>> {
    let mut buffer = vec![0.0_f32; bytes / size_of::<f32>()];
    let mut calls = |count: usize| {
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..count {
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        }
        let mut slowest = [start.elapsed().as_secs_f64() / count as f64];
        comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        Ok(slowest[0])
    };
    calls(2)?;
    let count = (SAMPLE.as_secs_f64() / calls(3)?).clamp(1.0, 20_000.0) as usize;
    (0..SAMPLES).map(|_| calls(count).map(|seconds| seconds * 1e6)).collect()
}

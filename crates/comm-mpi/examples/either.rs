//! One program, over the transports of comm or over MPI: only the line that creates the handle
//! differs.
//!
//! ```sh
//! mpirun -n 4 target/debug/examples/either mpi
//! mpirun -n 4 target/debug/examples/either        # or: commctl run -n 4 -- target/debug/examples/either
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use comm::{Comm, ReduceOp};

fn main() -> comm::Result<()> {
    let comm = match std::env::args().nth(1).as_deref() {
        Some("mpi") => comm_mpi::init()?,
        _ => comm::init()?,
    };
    let pi = estimate_pi(&comm, 1_000_000)?;
    if comm.rank() == 0 {
        println!("pi is about {pi:.9}, computed by {} ranks", comm.size());
    }
    comm.finalize()
}

/// Integrates 4 / (1 + x^2) from 0 to 1; every rank takes every size-th of the intervals.
fn estimate_pi(comm: &Comm, intervals: usize) -> comm::Result<f64> {
    let width = 1.0 / intervals as f64;
    let area = |interval: usize| {
        let x = (interval as f64 + 0.5) * width;
        4.0 / (1.0 + x * x) * width
    };
    let own: f64 = (comm.rank()..intervals).step_by(comm.size()).map(area).sum();
    comm.all_reduce_scalar(own, ReduceOp::Sum)
}

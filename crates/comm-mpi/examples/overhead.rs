//! Measures an all-reduce by this crate and `MPI_Allreduce` in the same processes.
//!
//! ```sh
//! cargo build --release -p comm-mpi --example overhead
//! mpirun -n 2 target/release/examples/overhead
//! ```
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::time::{Duration, Instant};

use comm_core::{Comm, ReduceOp, Result};
use comm_mpi::mpi::collective::SystemOperation;
use comm_mpi::mpi::topology::SimpleCommunicator;
use comm_mpi::mpi::traits::{Communicator as _, CommunicatorCollectives as _};
use comm_mpi::{CallMemoryMode, MpiConfig, init_with};

/// The lengths in elements of `f32`, and the calls that are timed together.
const SIZES: [(usize, u32); 3] = [(1, 1000), (16 << 10, 200), (4 << 20, 5)];
/// The number of times whose median is printed.
const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let handles = [
        ("comm-mpi", init_with(MpiConfig::default())?),
        ("without comparison", init_with(MpiConfig::default().compare_calls(false))?),
        ("borrowed memory", init_with(MpiConfig::default().memory(CallMemoryMode::Borrowed))?),
        ("both", init_with(MpiConfig::default().compare_calls(false).memory(CallMemoryMode::Borrowed))?),
    ];
    let world = SimpleCommunicator::world();
    if world.rank() == 0 {
        println!(
            "{}, {} ranks",
            comm_mpi::library_version()?.lines().next().unwrap_or_default(),
            world.size()
        );
        print!("{:>10} {:>20}", "bytes", "MPI_Allreduce");
        println!("{}", handles.iter().map(|(name, _)| format!(" {name:>20}")).collect::<String>());
    }
    for (len, calls) in SIZES {
        let times = measure(&world, &handles.each_ref().map(|(_, comm)| comm), len, calls)?;
        if world.rank() == 0 {
            println!(
                "{:>10}{}",
                len * 4,
                times.iter().map(|time| format!(" {time:>20.2?}")).collect::<String>()
            );
        }
    }
    handles.into_iter().try_for_each(|(_, comm)| comm.finalize())
}

/// Returns the median time of a call of MPI, and of each handle. They take turns.
fn measure(world: &SimpleCommunicator, comms: &[&Comm], len: usize, calls: u32) -> Result<Vec<Duration>> {
    let (ours, mut sums) = (vec![1.0_f32; len], vec![0.0_f32; len]);
    let mut times = vec![Vec::new(); comms.len() + 1];
    for _ in 0..=ROUNDS {
        world.barrier();
        let start = Instant::now();
        for _ in 0..calls {
            world.all_reduce_into(&ours[..], &mut sums[..], SystemOperation::sum());
        }
        times[0].push(start.elapsed() / calls);
        for (comm, times) in comms.iter().zip(&mut times[1..]) {
            world.barrier();
            let start = Instant::now();
            for _ in 0..calls {
                comm.all_reduce_into(&ours, &mut sums, ReduceOp::Sum)?;
            }
            times.push(start.elapsed() / calls);
        }
    }
    let median = |mut times: Vec<Duration>| {
        // The first round warms up.
        times.remove(0);
        times.sort_unstable();
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

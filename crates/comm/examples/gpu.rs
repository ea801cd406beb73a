//! An all-reduce of GPU memory, by NCCL, or through the host without it.
//!
//! Building needs neither CUDA nor NCCL; running needs a GPU per rank (docs/nccl.md).
//!
//! ```sh
//! cargo build -p comm-world --features nccl --example gpu
//! commctl run -n 2 --devices 0,1 -- target/debug/examples/gpu
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use comm::{DeviceBuffer, ReduceOp};

const LEN: usize = 1 << 20;

pub(crate) fn main() -> comm::Result<()> {
    // One communicator for device memory and one for host memory, which fail together.
    let comm = comm::init_devices()?;
    let (rank, ranks) = (comm.group().rank(), comm.group().size());

    // Copies the data to the device, on a stream of its own.
    let own: Vec<f32> = (0..LEN).map(|i| (rank + i % 8) as f32).collect();
    let mut buffer = DeviceBuffer::from_host(&comm.device().new_stream()?, &own)?;

    // Returns once the call is enqueued. Later uses of the buffer wait for it on the device.
    comm.cuda().all_reduce(&mut buffer, ReduceOp::Sum)?;
    let sums = buffer.to_vec()?;
    let expected = |i: usize| (ranks * (ranks - 1) / 2 + ranks * (i % 8)) as f32;
    assert!(sums.iter().enumerate().all(|(i, &sum)| sum == expected(i)), "a sum is wrong");

    // The same ranks can also use host memory.
    let slowest = comm.host().all_reduce_scalar(rank, ReduceOp::Max)?;
    assert_eq!(slowest + 1, ranks);
    if rank == 0 {
        println!("{LEN} sums of {ranks} ranks are exact, computed by {}", comm.path());
    }
    comm.host().clone().finalize()
}

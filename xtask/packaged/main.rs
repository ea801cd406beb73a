//! A program that depends on the packages, and checks a sum between threads and between processes.
//! `cargo xtask package` builds it and starts it with `commctl run`.

use comm::{Comm, ReduceOp, Result};

const THREADS: usize = 4;
const LEN: usize = 1000;

fn main() -> Result<()> {
    for outcome in comm::threads::run(THREADS, |comm| check(&comm))? {
        outcome?;
    }
    let comm = comm::init()?;
    check(&comm)?;
    println!("rank {} of {}: the sums are exact", comm.rank(), comm.size());
    comm.finalize()
}

/// Sums the numbers of all ranks, from 1 to the world size.
fn check(comm: &Comm) -> Result<()> {
    let mut sums = vec![comm.rank() as u64 + 1; LEN];
    comm.all_reduce(&mut sums, ReduceOp::Sum)?;
    let size = comm.size() as u64;
    assert_eq!(sums, vec![size * (size + 1) / 2; LEN]);
    Ok(())
}

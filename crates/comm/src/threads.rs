//! Ranks as threads of one process, for tests without sockets.

use std::time::Duration;

use comm_core::{Comm, Membership, Result};
use comm_ring::{RingCommunicator, RingConfig};
pub use comm_sim::in_process::InProcessConfig;
use comm_sim::in_process::{self, InProcessFabric};

/// The timeout for all ranks to start.
const START: Duration = Duration::from_secs(60);

/// Runs `rank` on one thread per rank, each with its own communicator, and returns the results in
/// rank order.
///
/// ```
/// use comm::ReduceOp;
///
/// let sums = comm::threads::run(3, |comm| {
///     let mut buffer = [comm.rank() as u32];
///     comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
///     Ok::<_, comm::Error>(buffer[0])
/// })?;
/// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [3, 3, 3]);
/// # Ok::<_, comm::Error>(())
/// ```
///
/// # Errors
/// If `ranks` is zero, or the ranks cannot be connected.
///
/// # Panics
/// If a rank panics, once every rank has ended.
pub fn run<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Result<Vec<R>> {
    comm_core::Group::new(comm_core::GroupId::WORLD, Membership { rank: 0, size: ranks })?;
    in_process::run(ranks, &InProcessConfig::default(), |fabric| connect(fabric).map(&rank))
        .into_iter()
        .collect()
}

fn connect(fabric: InProcessFabric) -> Result<Comm> {
    Ok(Comm::new(RingCommunicator::new(fabric, RingConfig::default(), START)?))
}

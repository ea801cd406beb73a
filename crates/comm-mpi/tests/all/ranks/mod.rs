//! The tests that each rank runs.

mod alone;
mod together;

use comm_core::Comm;
use comm_mpi::{MpiConfig, init_with};

/// The variable with the number of ranks that `launch` has started.
pub(crate) const LAUNCHED: &str = "COMM_MPI_TEST_RANKS";
/// The variable with the name of a test that needs a process of its own.
pub(crate) const ALONE: &str = "COMM_MPI_TEST_ALONE";

/// Returns the number of ranks. `None` if this process was not started by `launch`.
fn launched() -> Option<usize> {
    std::env::var(LAUNCHED).ok().map(|ranks| ranks.parse().unwrap())
}

/// Runs `body` on a new communicator of all ranks, if there are at least `ranks_min`.
fn run(ranks_min: usize, config: MpiConfig, body: impl FnOnce(Comm)) {
    let Some(ranks) = launched().filter(|ranks| *ranks >= ranks_min) else { return };
    let comm = init_with(config).unwrap();
    assert_eq!(comm.size(), ranks, "mpirun does not belong to the MPI of this program");
    body(comm);
}

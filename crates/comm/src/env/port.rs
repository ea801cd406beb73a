//! The process manager of MPI at a port, which tells a process its rank.

use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, Result};

use super::environment::Environment;
use super::launcher::{LAUNCHERS, PMI_FD};
use super::variables::{RENDEZVOUS_TIMEOUT_S, Variable};
use crate::process_manager;

/// The address of the process manager, and the id of the process, which `mpiexec -pmi-port` of
/// MPICH sets in place of the socket, the rank and the size.
const PMI_PORT: Variable = Variable::text("PMI_PORT");
const PMI_ID: Variable = Variable::number("PMI_ID");

/// Returns whether a process manager at a port has started this process.
pub(super) fn is_set(environment: &Environment) -> bool {
    [PMI_PORT, PMI_ID].iter().all(|variable| environment.is_set(variable.name))
}

/// Returns the environment with the rank, the size and the socket that the process manager at
/// `PMI_PORT` gives this process.
///
/// # Errors
/// The process manager cannot be reached, or refuses this process.
pub(crate) fn introduced(mut environment: Environment) -> Result<Environment> {
    let is_launched = LAUNCHERS.iter().any(|launcher| environment.is_set(launcher.rank.name));
    if is_launched || !is_set(&environment) {
        return Ok(environment);
    }
    let (Some(address), Some(id)) = (environment.text(&PMI_PORT)?, environment.number(&PMI_ID)?) else {
        return Ok(environment);
    };
    let timeout = environment.number(&RENDEZVOUS_TIMEOUT_S)?.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let (rank, size, descriptor) = process_manager::introduce(address, id, timeout)?;
    let [_, _, hydra, _] = &LAUNCHERS;
    environment.set(hydra.rank.name, rank);
    environment.set(hydra.size.name, size);
    environment.set(PMI_FD.name, descriptor);
    Ok(environment)
}

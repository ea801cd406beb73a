//! The suite of all communicators.

use std::time::Duration;

use comm_core::{Comm, DType, ReduceOp};
use comm_mpi::{CallMemoryMode, MpiCommunicator, MpiConfig};
use comm_sim::communicator_conformance::{Features, HostMember};

use crate::ranks::launched;

/// Returns this rank if there are `ranks`, and no rank otherwise.
fn member(ranks: usize, config: MpiConfig, features: Features) -> Vec<HostMember> {
    if launched() != Some(ranks) {
        return Vec::new();
    }
    let comm = Comm::new(MpiCommunicator::world(config).unwrap()).with_timeout(Duration::from_secs(120));
    vec![HostMember::new(comm, features)]
}

fn all(ranks: usize) -> Vec<HostMember> {
    let features = Features::default();
    // The suite is about all that a host computes.
    assert!((features.reduces)(ReduceOp::Avg, DType::BF16));
    member(ranks, MpiConfig::default(), features)
}

/// Calls on the memory of the caller.
fn borrowed(ranks: usize) -> Vec<HostMember> {
    member(ranks, MpiConfig::default().memory(CallMemoryMode::Borrowed), Features::default())
}

/// Calls that are not compared, so that no mismatch is detected.
fn unchecked(ranks: usize) -> Vec<HostMember> {
    let mut features = Features::default();
    (features.mismatches, features.step) = (&[], 5);
    member(ranks, MpiConfig::default().compare_calls(false), features)
}

comm_sim::communicator_conformance!(staged_memory, [1, 2, 3, 4], all);
comm_sim::communicator_conformance!(borrowed_memory, [1, 2, 3, 4], borrowed);
comm_sim::communicator_conformance!(unchecked_calls, [1, 2, 3, 4], unchecked);

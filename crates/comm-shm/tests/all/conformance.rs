//! The conformance suites of transports and communicators over shared memory.

#![allow(clippy::unwrap_used)]

use crate::common::arena::arena_fabric;
use comm_core::{Comm, Fabric};
use comm_ring::{RingCommunicator, RingConfig};
use comm_shm::{SharedMemoryConfig, SharedMemoryFabric};
use comm_sim::communicator_conformance::{Features, HostMember};

fn with_defaults(n: usize) -> Vec<SharedMemoryFabric> {
    crate::common::world(n, SharedMemoryConfig::default().ring_bytes)
}

/// Rings that are full all the time.
fn with_tiny_rings(n: usize) -> Vec<SharedMemoryFabric> {
    crate::common::world(n, SharedMemoryConfig::RING_BYTES_MIN)
}

/// Every pair is connected when it is first used.
fn on_demand(n: usize) -> Vec<SharedMemoryFabric> {
    crate::common::on_demand_world(n, SharedMemoryConfig::RING_BYTES_MIN)
}

/// Everything is read in place.
fn with_all_in_place(n: usize) -> Vec<impl Fabric> {
    let fabric = crate::common::zero_copy_world(n, SharedMemoryConfig::RING_BYTES_MIN, 1);
    fabric.into_iter().map(arena_fabric).collect()
}

/// Some is read in place, and some is copied.
fn with_some_in_place(n: usize) -> Vec<impl Fabric> {
    let fabric = crate::common::zero_copy_world(n, SharedMemoryConfig::RING_BYTES_MIN, 32 * 50);
    fabric.into_iter().map(arena_fabric).collect()
}

/// Checks every `step`-th combination with blocks of these lengths.
fn communicators(
    fabrics: Vec<impl Fabric + 'static>,
    lengths: fn(usize) -> Vec<usize>,
    step: usize,
) -> Vec<HostMember> {
    let mut features = Features::default();
    (features.lengths, features.step) = (lengths, step);
    comm_sim::run_each(fabrics, |fabric| {
        let ring = RingCommunicator::new(fabric, RingConfig::default(), features.options.timeout).unwrap();
        HostMember::new(Comm::new(ring), features.clone())
    })
}

/// Lengths around the size of a page, and one that is far larger than tiny rings.
fn lengths(ranks: usize) -> Vec<usize> {
    vec![0, 1, ranks + 1, 1023, 1024, 1025, 20_011]
}

comm_sim::transport_conformance!(defaults, with_defaults);
comm_sim::transport_conformance!(tiny_rings, with_tiny_rings);
comm_sim::transport_conformance!(all_in_place, with_all_in_place);
comm_sim::transport_conformance!(some_in_place, with_some_in_place);

comm_sim::transport_conformance!(on_demand on_demand_tiny_rings, on_demand);

comm_sim::communicator_conformance!(on_demand_communicator, [2, 3, 5, 8, 13], |n| {
    communicators(on_demand(n), lengths, 31)
});
comm_sim::communicator_conformance!(communicator_through_tiny_rings, [1, 2, 3, 5, 8], |n| {
    communicators(with_tiny_rings(n), lengths, 31)
});
comm_sim::communicator_conformance!(communicator_with_some_in_place, [2, 3], |n| {
    communicators(with_some_in_place(n), lengths, 97)
});
comm_sim::communicator_conformance!(communicator_with_single_copies, [2, 3], |n| {
    communicators(crate::common::single_copy_world(n, SharedMemoryConfig::RING_BYTES_MIN, 64), lengths, 97)
});
comm_sim::communicator_conformance!(communicator_of_large_data, [2, 3, 5], |n| {
    communicators(crate::common::world(n, 256 * 1024), |_| vec![300_007], 41)
});

//! The contract of every transport, kept over shared memory.

#![allow(clippy::unwrap_used)]

mod common;

use comm_core::Fabric;
use comm_shm::{SharedMemoryConfig, SharedMemoryFabric};
use common::arena::arena_fabric;

fn with_defaults(n: usize) -> Vec<SharedMemoryFabric> {
    common::world(n, SharedMemoryConfig::default().ring_bytes)
}

/// Rings that are full all the time.
fn with_tiny_rings(n: usize) -> Vec<SharedMemoryFabric> {
    common::world(n, SharedMemoryConfig::RING_BYTES_MIN)
}

/// Everything is read where the sender has it.
fn with_all_lent(n: usize) -> Vec<impl Fabric> {
    let fabric = common::lending_world(n, SharedMemoryConfig::RING_BYTES_MIN, 1);
    fabric.into_iter().map(arena_fabric).collect()
}

/// Some is, and some is copied.
fn with_some_lent(n: usize) -> Vec<impl Fabric> {
    let fabric = common::lending_world(n, SharedMemoryConfig::RING_BYTES_MIN, 32 * 50);
    fabric.into_iter().map(arena_fabric).collect()
}

comm_sim::transport_conformance!(defaults, with_defaults);
comm_sim::transport_conformance!(tiny_rings, with_tiny_rings);
comm_sim::transport_conformance!(all_lent, with_all_lent);
comm_sim::transport_conformance!(some_lent, with_some_lent);

//! The contract of every transport, kept over shared memory.

#![allow(clippy::unwrap_used)]

mod common;

use comm_shm::{SharedMemoryConfig, SharedMemoryLanes};

fn with_defaults(n: usize) -> Vec<SharedMemoryLanes> {
    common::world(n, SharedMemoryConfig::default().ring_bytes)
}

/// Rings that are full all the time.
fn with_tiny_rings(n: usize) -> Vec<SharedMemoryLanes> {
    common::world(n, SharedMemoryConfig::RING_BYTES_MIN)
}

comm_sim::transport_conformance!(defaults, with_defaults);
comm_sim::transport_conformance!(tiny_rings, with_tiny_rings);

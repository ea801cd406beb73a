//! Ranks that find each other through a folder.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; each program uses a part of this")]

pub(crate) mod arena;
pub(crate) mod stopping;

use std::thread;
use std::time::Duration;

use comm_core::{ChannelId, ChannelKind, GroupId, Membership, Result};
use comm_shm::{RendezvousConfig, SharedMemoryConfig, SharedMemoryFabric};
use comm_tcp::FileStore;

/// The time after which an operation counts as hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const WORLD: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

/// Returns a store in a new folder, which is removed when the first value is dropped.
pub(crate) fn store() -> (tempfile::TempDir, FileStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    (folder, store)
}

/// Returns the configuration of one rank with the timeout of tests.
pub(crate) fn config(rank: usize, world_size: usize, ring_bytes: usize) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size: world_size });
    config.member.timeout = SOON;
    config.shm = rings(ring_bytes);
    config
}

pub(crate) fn rings(ring_bytes: usize) -> SharedMemoryConfig {
    let mut config = SharedMemoryConfig::default();
    config.ring_bytes = ring_bytes;
    config
}

/// Runs every configuration in its own thread, and returns the outcomes in order.
pub(crate) fn rendezvous(configs: Vec<RendezvousConfig>) -> Vec<Result<SharedMemoryFabric>> {
    let (_folder, store) = store();
    thread::scope(|scope| {
        let store = &store;
        let rank = |config| scope.spawn(move || SharedMemoryFabric::rendezvous(store, &config));
        let ranks: Vec<_> = configs.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Returns the fabrics of `n` ranks, in rank order.
pub(crate) fn world(n: usize, ring_bytes: usize) -> Vec<SharedMemoryFabric> {
    world_with(n, rings(ring_bytes))
}

/// Returns a world in which every pair is connected when it is first used.
pub(crate) fn on_demand_world(n: usize, ring_bytes: usize) -> Vec<SharedMemoryFabric> {
    let mut shm = rings(ring_bytes);
    shm.full_mesh_max = 0;
    world_with(n, shm)
}

fn world_with(n: usize, shm: SharedMemoryConfig) -> Vec<SharedMemoryFabric> {
    let config = |rank| {
        let mut config = config(rank, n, shm.ring_bytes);
        config.shm = shm.clone();
        config
    };
    rendezvous((0..n).map(config).collect()).into_iter().map(Result::unwrap).collect()
}

/// Returns a world in which buffers of at least this size are read in place.
pub(crate) fn zero_copy_world(
    n: usize,
    ring_bytes: usize,
    zero_copy_bytes: usize,
) -> Vec<SharedMemoryFabric> {
    let mut shm = rings(ring_bytes);
    shm.zero_copy_bytes = zero_copy_bytes;
    world_with(n, shm)
}

/// Returns a world in which only pieces of other memory of at least this size are read in place.
pub(crate) fn single_copy_world(
    n: usize,
    ring_bytes: usize,
    single_copy_bytes: usize,
) -> Vec<SharedMemoryFabric> {
    let mut shm = rings(ring_bytes);
    (shm.zero_copy_bytes, shm.single_copy_bytes) = (usize::MAX, Some(single_copy_bytes));
    world_with(n, shm)
}

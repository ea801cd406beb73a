//! Ranks as threads that connect through a store, on simulated hosts.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, Fabric, GroupId, Membership, Result, Store};
use comm_hybrid::{HybridFabric, HybridTransport, RendezvousConfig};
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};

/// The time after which a test is considered to hang.
pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const WORLD: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

pub(crate) fn store() -> (TcpStoreServer, TcpStore) {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default()).unwrap();
    let client = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON).unwrap();
    (server, client)
}

/// A rank on the host of this name, with the time limit of tests.
pub(crate) fn config(rank: usize, world_size: usize, host: &str) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size: world_size });
    config.tcp.member.timeout = SOON;
    config.host_id = Some(host.into());
    config
}

/// Runs every configuration in a separate thread, and returns the results in the same order.
pub(crate) fn rendezvous_in(store: &dyn Store, configs: Vec<RendezvousConfig>) -> Vec<Result<HybridFabric>> {
    thread::scope(|scope| {
        let rank = |config| scope.spawn(move || HybridFabric::rendezvous(store, &config));
        let ranks: Vec<_> = configs.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Like [`rendezvous_in`], with a store that ends after the rendezvous, because channels do not
/// need it.
pub(crate) fn rendezvous(configs: Vec<RendezvousConfig>) -> Vec<Result<HybridFabric>> {
    let (_server, store) = store();
    rendezvous_in(&store, configs)
}

/// The channels of one rank per letter, which names its host, in rank order.
pub(crate) fn world(hosts: &str) -> Vec<HybridFabric> {
    let rank = |(rank, host): (usize, char)| config(rank, hosts.len(), &host.to_string());
    rendezvous(hosts.chars().enumerate().map(rank).collect()).into_iter().map(Result::unwrap).collect()
}

/// Distributions of `n` ranks over hosts: even and uneven, contiguous and alternating.
pub(crate) fn spreads(n: usize) -> Vec<String> {
    let spread = |host: &dyn Fn(usize) -> usize| {
        (0..n).map(|rank| char::from(b'a' + u8::try_from(host(rank)).unwrap())).collect::<String>()
    };
    let mut spreads = vec![
        spread(&|rank| rank / 2),
        spread(&|rank| rank % 2),
        spread(&|rank| rank / n.div_ceil(2)),
        spread(&|rank| rank.min(1)),
        spread(&|rank| usize::from(rank == n - 1)),
    ];
    spreads.sort();
    spreads.dedup();
    spreads
}

pub(crate) fn open(fabric: &HybridFabric, channel: ChannelId) -> Result<HybridTransport> {
    fabric.open(channel, Instant::now() + SOON)
}

//! Ranks as threads that find each other through a store, over real sockets.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; not every file uses every one")]

#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod relay;
pub(crate) mod stream;

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, Fabric, GroupId, Membership, Result};
use comm_tcp::{RendezvousConfig, StoreConfig, TcpFabric, TcpStore, TcpStoreServer, TcpTransport};

pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const WORLD: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

pub(crate) fn store() -> (TcpStoreServer, TcpStore) {
    store_at("127.0.0.1:0").unwrap()
}

pub(crate) fn store_at(address: &str) -> Result<(TcpStoreServer, TcpStore)> {
    let server = TcpStoreServer::bind(address.parse().unwrap(), StoreConfig::default())?;
    let client = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON)?;
    Ok((server, client))
}

pub(crate) fn config(rank: usize, world_size: usize) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size: world_size });
    config.member.timeout = SOON;
    config
}

/// Runs every configuration in its own thread, and returns the outcomes in order.
pub(crate) fn run<T: Send>(
    configs: Vec<RendezvousConfig>,
    store: &TcpStore,
    then: impl Fn(TcpFabric) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let ranks: Vec<_> = configs
            .into_iter()
            .map(|config| {
                let then = &then;
                scope.spawn(move || TcpFabric::rendezvous(store, &config).and_then(then))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub(crate) fn rendezvous(configs: Vec<RendezvousConfig>, store: &TcpStore) -> Vec<Result<TcpFabric>> {
    run(configs, store, Ok)
}

pub(crate) fn open(fabric: &TcpFabric, channel: ChannelId) -> Result<TcpTransport> {
    fabric.open(channel, Instant::now() + SOON)
}

/// Sends the rank to every peer, and checks the ranks that they send.
pub(crate) fn introduce(transport: &mut TcpTransport) {
    comm_sim::conformance::introduce(transport).unwrap();
}

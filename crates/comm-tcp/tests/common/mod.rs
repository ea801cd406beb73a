//! Ranks as threads that meet in a store over real sockets.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; not every file uses every one")]

use std::io::IoSlice;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{GroupId, LaneId, LaneKind, Lanes, Result, Transport};
use comm_tcp::{RendezvousConfig, StoreConfig, TcpLanes, TcpStore, TcpStoreServer, TcpTransport};

pub(crate) const SOON: Duration = Duration::from_secs(20);
pub(crate) const WORLD: LaneId = LaneId { group: GroupId::WORLD, kind: LaneKind::Collective };

pub(crate) fn store() -> (TcpStoreServer, TcpStore) {
    store_at("127.0.0.1:0").unwrap()
}

pub(crate) fn store_at(address: &str) -> Result<(TcpStoreServer, TcpStore)> {
    let server = TcpStoreServer::bind(address.parse().unwrap(), StoreConfig::default())?;
    let client = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON)?;
    Ok((server, client))
}

pub(crate) fn config(rank: usize, world_size: usize) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(rank, world_size);
    config.timeout = SOON;
    config
}

/// Runs every configuration in a thread of its own, and returns what became of each in their order.
pub(crate) fn run<T: Send>(
    configs: Vec<RendezvousConfig>,
    store: &TcpStore,
    then: impl Fn(TcpLanes) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let ranks: Vec<_> = configs
            .into_iter()
            .map(|config| {
                let then = &then;
                scope.spawn(move || TcpLanes::rendezvous(store, &config).and_then(then))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub(crate) fn meet(configs: Vec<RendezvousConfig>, store: &TcpStore) -> Vec<Result<TcpLanes>> {
    run(configs, store, Ok)
}

pub(crate) fn open(lanes: &TcpLanes, lane: LaneId) -> Result<TcpTransport> {
    lanes.open(lane, Instant::now() + SOON)
}

pub(crate) fn send(transport: &mut TcpTransport, to: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let sent = transport.try_send(to, &[IoSlice::new(bytes)]).unwrap();
        bytes = &bytes[sent..];
    }
}

pub(crate) fn recv(transport: &mut TcpTransport, from: usize, len: usize) -> Result<Vec<u8>> {
    let (mut bytes, mut filled) = (vec![0; len], 0);
    let limit = Instant::now() + SOON;
    while filled < len {
        filled += transport.try_recv(from, &mut bytes[filled..])?;
        assert!(Instant::now() < limit, "{filled} of {len} bytes came from rank {from}");
    }
    Ok(bytes)
}

/// Everybody tells everybody who it is.
pub(crate) fn introduce(transport: &mut TcpTransport) {
    let group = transport.group();
    for peer in group.peers() {
        send(transport, peer, &[group.rank() as u8, peer as u8]);
    }
    for peer in group.peers() {
        assert_eq!(recv(transport, peer, 2).unwrap(), [peer as u8, group.rank() as u8]);
    }
}

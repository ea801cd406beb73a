//! Ranks as threads with real sockets.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "helpers of tests; each program uses a part of this"
)]

pub(crate) mod hosts;
pub(crate) mod jobs;
pub(crate) mod port;
pub(crate) mod process;

use std::net::SocketAddr;
use std::time::Duration;

use comm::tcp::{StoreConfig, TcpStoreServer};
use comm::{Comm, Config, Membership, StoreHost, TransportKind};

pub(crate) use port::Port;

pub(crate) const JOB: u64 = 0x5eed;

/// Returns a store like a launcher's.
pub(crate) fn store() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::job(JOB)).unwrap()
}

/// The configuration of a rank over TCP, with the store `store`.
pub(crate) fn config(rank: usize, ranks: usize, store: SocketAddr) -> Config {
    let mut config =
        Config::new(Membership { rank, size: ranks }, &store.ip().to_string(), store.port()).unwrap();
    config.store = StoreHost::Launcher;
    config.transport = TransportKind::Tcp;
    config.job = JOB;
    config.rendezvous_timeout = Duration::from_secs(30);
    config.timeout = Duration::from_secs(60);
    config
}

/// Runs `rank` on one thread per rank over TCP, with configurations modified by `adjust`.
pub(crate) fn world_with<R: Send>(
    ranks: usize,
    adjust: impl Fn(&mut Config) + Sync,
    rank: impl Fn(Comm) -> R + Sync,
) -> Vec<R> {
    let store = store();
    each(ranks, |at| {
        let mut config = config(at, ranks, store.local_addr());
        adjust(&mut config);
        rank(comm::init_with(&config).unwrap())
    })
}

/// Runs `rank` on one thread per rank over TCP.
pub(crate) fn world<R: Send>(ranks: usize, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    world_with(ranks, |_| {}, rank)
}

/// Runs `rank` on one thread for each number below `ranks`.
pub(crate) fn each<R: Send>(ranks: usize, rank: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..ranks).map(|at| scope.spawn(move || rank(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

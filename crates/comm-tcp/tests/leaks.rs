//! Descriptors and threads do not leak. This is a separate test binary with a single test, because
//! descriptors and threads belong to the process.

#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{ChannelId, ChannelKind, Fabric, GroupId, Membership};
use comm_tcp::{RendezvousConfig, StoreConfig, TcpFabric, TcpStore, TcpStoreServer};

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

fn config(rank: usize, size: usize, round: u64, timeout: Duration) -> RendezvousConfig {
    let mut config = RendezvousConfig::new(Membership { rank, size });
    (config.member.round, config.member.timeout) = (round, timeout);
    config
}

/// A rendezvous and channels that succeed, and others that fail.
fn live(store: &TcpStore, round: u64) {
    let soon = Duration::from_secs(20);
    let channel = |kind| ChannelId { group: GroupId::WORLD, kind };
    thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let fabric = TcpFabric::rendezvous(store, &config(rank, 3, round, soon)).unwrap();
                let _control = fabric.open(channel(ChannelKind::Control), Instant::now() + soon).unwrap();
                let soon = Instant::now() + Duration::from_millis(50);
                match rank {
                    0 => drop(fabric.open(channel(ChannelKind::Collective), soon).unwrap_err()),
                    // Rank 1 may still open the control channel, and accept rank 2.
                    2 => drop(fabric.open(channel(ChannelKind::Collective), soon)),
                    _ => {}
                }
            });
        }
    });
    let alone = config(0, 2, round + 1, Duration::from_millis(20));
    TcpFabric::rendezvous(store, &alone).unwrap_err();
}

#[test]
fn no_descriptors_or_threads_are_leaked() {
    let (descriptors, threads) = (count("fd"), count("task"));
    {
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default()).unwrap();
        let timeout = Duration::from_secs(20);
        let store = TcpStore::connect(server.local_addr(), StoreConfig::default(), timeout).unwrap();
        (0..5).for_each(|round| live(&store, 2 * round));
    }
    assert_eq!(count("fd"), descriptors);
    // A thread that was joined stays in /proc for a moment.
    let limit = Instant::now() + Duration::from_secs(10);
    while count("task") > threads {
        assert!(Instant::now() < limit, "{} threads are left of {threads}", count("task"));
        thread::sleep(Duration::from_millis(1));
    }
}

//! Floods of connections while a store serves and while ranks open channels. They run in a separate
//! program, because they take descriptors and processors from other tests.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Fabric, Result, Store};
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};
use common::{SOON, WORLD, config, introduce, open, rendezvous, store};
use socket2::{Domain, Socket, Type};

/// The silent connections of one flood.
const SILENT: usize = 300;
/// The number of connections after which a flood ends by itself, so that a failing test ends.
const FLOOD_MAX: u64 = 2_000_000;

fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Connects and resets, as fast as it can, until `count` is at the maximum.
fn connect_and_reset(address: SocketAddr, count: &AtomicU64) {
    while count.fetch_add(1, Ordering::Relaxed) < FLOOD_MAX {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // This fails once the listener is closed. If nobody accepts any more and the queue is full,
        // the kernel gives up only after two minutes.
        let _ = socket.connect_timeout(&address.into(), Duration::from_secs(1));
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Runs `body` while two threads connect and reset without a pause, and checks that they still do
/// so when it ends.
fn in_a_flood<T>(address: SocketAddr, body: impl FnOnce() -> T) -> T {
    let count = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| connect_and_reset(address, &count));
        }
        while count.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let connections = count.swap(FLOOD_MAX, Ordering::Relaxed);
        assert!(connections < FLOOD_MAX, "it took longer than the flood");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn serve(config: StoreConfig) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), config).unwrap()
}

#[test]
fn a_store_serves_and_stops_in_a_flood_of_resets() {
    let server = serve(StoreConfig::default());
    let address = server.local_addr();
    let client = TcpStore::connect(address, StoreConfig::default(), SOON).unwrap();
    in_a_flood(address, || {
        (0..101).for_each(|_| client.set("k", b"v").unwrap());
        TcpStore::connect(address, StoreConfig::default(), SOON).unwrap().set("k", b"w").unwrap();
        drop(server);
    });
}

#[test]
fn a_client_connects_past_silent_connections_without_a_deadline() {
    let mut config = StoreConfig::default();
    config.handshake_timeout = Duration::MAX;
    let server = serve(config.clone());
    let mut silent = silent(server.local_addr(), SILENT);
    let client = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
    client.set("k", b"v").unwrap();
    // The oldest were closed in favour of the client.
    silent[0].set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn opening_a_channel_keeps_its_deadline_in_a_flood_of_resets() {
    let (_server, store) = store();
    let fabrics: Vec<_> = rendezvous((0..2).map(|rank| config(rank, 2)).collect(), &store)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    in_a_flood(fabrics[0].addresses()[0], || {
        let opened = fabrics[0].open(WORLD, Instant::now() + Duration::from_millis(500)).map(drop);
        assert!(matches!(&opened, Err(Error::Timeout { .. })), "{opened:?}");
    });
}

#[test]
fn ranks_open_a_channel_in_a_flood_of_silent_and_of_reset_connections() {
    let (_server, store) = store();
    let fabrics: Vec<_> = rendezvous((0..3).map(|rank| config(rank, 3)).collect(), &store)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let address = fabrics[0].addresses()[0];
    let _silent = silent(address, SILENT);
    in_a_flood(address, || {
        thread::scope(|scope| {
            for fabric in &fabrics {
                scope.spawn(|| introduce(&mut open(fabric, WORLD).unwrap()));
            }
        });
    });
}

#[test]
fn a_handshake_without_a_timeout_is_possible() {
    let (_server, store) = store();
    let configs = (0..2).map(|rank| {
        let mut config = config(rank, 2);
        config.tcp.handshake_timeout = Duration::MAX;
        config
    });
    let outcomes = common::run(configs.collect(), &store, |fabric| {
        introduce(&mut open(&fabric, WORLD)?);
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

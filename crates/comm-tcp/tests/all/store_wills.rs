//! A store executes the last wills of clients that exit, and drains.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SOON, store};
use comm_core::{Error, LastWill, Presence, Refusal, Result, Store};
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn client(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON).unwrap()
}

/// Leaves a will for the keys `first` and `second`, on the condition that `mine` is "me", and
/// watches `first`.
fn register_last_will(store: &TcpStore) -> Box<dyn Presence> {
    let will = LastWill { condition: ("mine", b"me"), keys: &["first", "second"], value: b"gone" };
    store.register_last_will(&will, "first", SOON).unwrap().unwrap()
}

fn exists(store: &TcpStore, key: &str) -> bool {
    store.wait(&[key], Duration::ZERO).is_ok()
}

/// Returns the watched value, once the descriptor is readable.
fn watched(presence: &dyn Presence) -> Result<Option<Vec<u8>>> {
    let descriptor = presence.descriptor();
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)), Ok(1));
    presence.poll()
}

#[test]
fn a_will_is_executed_when_its_client_exits_and_wakes_waiters() {
    let (server, store) = store();
    store.set("mine", b"me").unwrap();
    let (leaver, watcher) = (client(&server), client(&server));
    let presence = register_last_will(&leaver);
    let watching = register_last_will(&watcher);
    assert_eq!(watching.poll().unwrap(), None);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("second", SOON).unwrap());
        drop((presence, leaver));
        assert_eq!(waiting.join().unwrap(), b"gone");
    });
    assert_eq!(watched(&*watching).unwrap(), Some(b"gone".to_vec()));
    assert_eq!(watching.poll().unwrap(), Some(b"gone".to_vec()), "an answer is kept");
}

#[test]
fn a_will_does_not_replace_a_value() {
    let (server, store) = store();
    store.set("mine", b"me").unwrap();
    store.set("first", b"done").unwrap();
    drop(register_last_will(&client(&server)));
    // Further keys get the value of the first one.
    assert_eq!(store.get("second", SOON).unwrap(), b"done");
    assert_eq!(store.get("first", SOON).unwrap(), b"done");
}

#[test]
fn a_will_whose_condition_does_not_hold_is_not_executed() {
    let (server, store) = store();
    for mine in [&b""[..], b"another"] {
        store.set("mine", mine).unwrap();
        let leaver = client(&server);
        let will = LastWill { condition: ("mine", b"me"), keys: &["first"], value: b"gone" };
        drop(leaver.register_last_will(&will, "never", SOON).unwrap());
        // The will of another client that ends later shows that the server has handled the first.
        let will = LastWill { condition: ("mine", mine), keys: &["later"], value: b"gone" };
        drop(leaver.register_last_will(&will, "never", SOON).unwrap());
        store.get("later", SOON).unwrap();
        store.delete("later").unwrap();
        assert!(!exists(&store, "first"));
    }
}

#[test]
fn a_will_that_is_too_long_is_refused() {
    let (server, _) = store();
    let value = vec![0; 5000];
    let will = LastWill { condition: ("mine", b"me"), keys: &["first"], value: &value };
    client(&server).register_last_will(&will, "first", SOON).unwrap_err();
}

fn is_closing<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Handshake { refusal: Refusal::StoreClosing, .. }))
}

#[test]
fn a_draining_server_frees_its_address_and_serves_connected_clients() {
    let (server, store) = store();
    let address = server.local_addr();
    let presence = register_last_will(&store);
    store.set("there", b"value").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("never", SOON));
        server.drain(Duration::ZERO, SOON);
        assert!(is_closing(waiting.join().unwrap()));
    });
    assert!(is_closing(watched(&*presence)));
    let next = TcpStoreServer::bind(address, StoreConfig::default()).unwrap();
    assert_eq!(store.get("there", SOON).unwrap(), b"value", "the old server still serves its client");
    assert!(is_closing(store.get("never", SOON)));
    assert!(matches!(store.get("never", Duration::ZERO), Err(Error::Timeout { .. })));
    assert!(!exists(&client(&next), "there"), "a new client gets the new server");
}

#[test]
fn a_draining_server_ends_when_its_clients_have_left_or_its_grace_period_has_passed() {
    let (server, store) = store();
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            drop(store);
        });
        server.drain(SOON, SOON);
    });
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());

    let (server, store) = crate::common::store();
    server.drain(Duration::ZERO, Duration::from_millis(50));
    let limit = Instant::now() + SOON;
    while store.set("key", b"value").is_ok() {
        assert!(Instant::now() < limit, "it still serves");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_store_that_closes_executes_no_will() {
    let (server, store) = store();
    store.set("mine", b"me").unwrap();
    let leaver = client(&server);
    let presence = register_last_will(&leaver);
    server.drain(Duration::ZERO, SOON);
    drop((presence, leaver));
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(!store.check(&["first"]).unwrap());
        thread::sleep(Duration::from_millis(5));
    }
}

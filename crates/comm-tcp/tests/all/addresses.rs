//! A client of a store that has several addresses of its server.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use comm_core::{Error, Refusal, Store};
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer, TorchStore};

const LONG: Duration = Duration::from_secs(60);

fn server(address: &str) -> TcpStoreServer {
    TcpStoreServer::bind(address.parse().unwrap(), StoreConfig::job(1)).unwrap()
}

/// An address without a listener.
fn silent() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn the_address_that_answers_is_used_at_any_position() {
    let server = server("127.0.0.1:0");
    let answering = server.local_addr();
    for addresses in [vec![answering], vec![silent(), answering], vec![answering, silent(), silent()]] {
        let store = TcpStore::connect_first(&addresses, StoreConfig::job(1), LONG).unwrap();
        assert_eq!(store.server_addr(), answering);
        store.set("key", b"value").unwrap();
        assert_eq!(store.get("key", LONG).unwrap(), b"value");
    }
}

#[test]
fn an_address_that_does_not_answer_delays_no_other() {
    // Its queue is full: further connections neither succeed nor fail.
    let full = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let full = full.unwrap();
    rustix::net::bind(&full, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&full).unwrap()).unwrap();
    let _queued: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200))).collect();
    let server = server("127.0.0.1:0");
    let begun = Instant::now();
    let addresses = [address, server.local_addr()];
    let store = TcpStore::connect_first(&addresses, StoreConfig::job(1), LONG).unwrap();
    assert_eq!(store.server_addr(), server.local_addr());
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_server_of_both_families_is_reached_by_each() {
    let server = server("[::]:0");
    let port = server.local_addr().port();
    for ip in ["127.0.0.1", "::1"] {
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        let store = TcpStore::connect_first(&[silent(), address], StoreConfig::job(1), LONG).unwrap();
        assert_eq!(store.server_addr(), address);
    }
}

#[test]
fn an_error_names_every_address_that_was_tried() {
    let silent = [silent(), silent()];
    let short = Duration::from_millis(300);
    let ours = TcpStore::connect_first(&silent, StoreConfig::job(1), short).unwrap_err();
    let torch = TorchStore::connect_first(&silent, StoreConfig::job(1), short).unwrap_err();
    for error in [ours, torch] {
        let text = error.to_string();
        assert!(silent.iter().all(|address| text.contains(&address.to_string())), "{text}");
        let is_refused = |source: &std::io::Error| source.kind() == ErrorKind::ConnectionRefused;
        assert!(matches!(&error, Error::Io { source, .. } if is_refused(source)), "{error}");
    }
    assert!(matches!(TcpStore::connect_first(&[], StoreConfig::job(1), LONG), Err(Error::Invalid(_))));
    assert!(matches!(TorchStore::connect_first(&[], StoreConfig::job(1), LONG), Err(Error::Invalid(_))));
}

#[test]
fn a_refusal_ends_the_search() {
    let server = server("127.0.0.1:0");
    let addresses = [silent(), server.local_addr()];
    let error = TcpStore::connect_first(&addresses, StoreConfig::job(2), LONG).unwrap_err();
    assert!(matches!(error, Error::Handshake { refusal: Refusal::Job, .. }), "{error}");
}

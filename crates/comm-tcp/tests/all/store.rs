//! The store, over real sockets.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, LastWill, Refusal, Store};
use comm_tcp::{Secret, StoreConfig, TcpStore, TcpStoreServer};
use socket2::{Domain, Socket, Type};

const SOON: Duration = Duration::from_secs(10);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A bound port, which no other test gets, without a listener.
fn reserve() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&loopback().into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn serve(config: StoreConfig) -> TcpStoreServer {
    TcpStoreServer::bind(loopback(), config).unwrap()
}

fn pair(config: StoreConfig) -> (TcpStoreServer, TcpStore) {
    let server = serve(config.clone());
    let client = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
    (server, client)
}

#[test]
fn operations_behave_as_in_c10d() {
    let (_server, store) = pair(StoreConfig::default());
    store.set("a", b"1").unwrap();
    assert_eq!(store.get("a", SOON).unwrap(), b"1");
    assert_eq!(store.add("a", 41).unwrap(), 42);
    assert_eq!(store.get("a", SOON).unwrap(), b"42");
    assert_eq!(store.compare_set("a", b"41", b"x").unwrap(), b"42");
    assert_eq!(store.compare_set("a", b"42", b"x").unwrap(), b"x");
    assert_eq!(store.compare_set("b", b"something", b"x").unwrap(), b"");
    assert_eq!(store.compare_set("b", b"", b"y").unwrap(), b"y");
    store.wait(&["a", "b"], SOON).unwrap();
    store.wait(&[], SOON).unwrap();
    assert!(store.delete("a").unwrap());
    assert!(!store.delete("a").unwrap());
    assert!(matches!(store.add("b", 1), Err(Error::Invalid(_))));
    store.set("", b"").unwrap();
    assert_eq!(store.get("", SOON).unwrap(), b"");
    assert_eq!(store.num_keys().unwrap(), 2);
    assert!(store.check(&["", "b"]).unwrap() && store.check(&[]).unwrap());
    assert!(!store.check(&["b", "a"]).unwrap());
    assert!(matches!(store.check(&vec!["b"; 65_537]), Err(Error::Invalid(_))));
    assert!(matches!(store.wait(&vec!["b"; 65_537], SOON), Err(Error::Invalid(_))));
}

#[test]
fn large_values_are_stored_and_too_large_ones_are_invalid() {
    let (_server, store) = pair(StoreConfig::default());
    let value: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    store.set("big", &value).unwrap();
    assert_eq!(store.get("big", SOON).unwrap(), value);
    assert!(matches!(store.set("huge", &vec![0; 17 << 20]), Err(Error::Invalid(_))));
    assert_eq!(store.get("big", SOON).unwrap().len(), value.len());
}

#[test]
fn a_full_store_returns_an_error_and_accepts_values_after_a_delete() {
    let mut config = StoreConfig::default();
    config.stored_bytes_max = 250;
    let (_server, store) = pair(config);
    store.set("k", &[0; 90]).unwrap();
    assert!(store.set("l", &[0; 90]).unwrap_err().to_string().contains("full"));
    assert!(store.delete("k").unwrap());
    store.set("l", &[0; 90]).unwrap();
}

#[test]
fn a_waiting_thread_delays_no_other_thread_of_the_client() {
    let (_server, store) = pair(StoreConfig::default());
    let waiting = Barrier::new(9);
    thread::scope(|scope| {
        for reader in 0..8 {
            let (store, waiting) = (&store, &waiting);
            scope.spawn(move || {
                waiting.wait();
                if reader % 2 == 0 {
                    assert_eq!(store.get("late", SOON).unwrap(), b"now");
                } else {
                    store.wait(&["early", "late", "later"], SOON).unwrap();
                }
            });
        }
        waiting.wait();
        thread::sleep(Duration::from_millis(50));
        store.set("early", b"").unwrap();
        store.set("later", b"").unwrap();
        store.set("late", b"now").unwrap();
    });
}

#[test]
fn additions_of_many_clients_each_count_once() {
    let (server, store) = pair(StoreConfig::default());
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let own = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON).unwrap();
                for _ in 0..200 {
                    own.add("n", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(store.add("n", 0).unwrap(), 1000);
}

#[test]
fn only_one_compare_set_succeeds() {
    let (_server, store) = pair(StoreConfig::default());
    let wins: usize = thread::scope(|scope| {
        let racers: Vec<_> = (0..8_u8)
            .map(|me| {
                let store = &store;
                scope.spawn(move || usize::from(store.compare_set("k", b"", &[me]).unwrap() == [me]))
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_timeout_names_the_missing_keys_and_is_kept() {
    let (_server, store) = pair(StoreConfig::default());
    store.set("there", b"").unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(300)] {
        let began = Instant::now();
        let error = store.wait(&["there", "here", "nowhere"], timeout).unwrap_err();
        assert!(began.elapsed() >= timeout);
        assert!(error.to_string().contains("\"here, nowhere\""), "{error}");
        let error = store.get("here", timeout).unwrap_err();
        assert!(matches!(error, Error::Timeout { after, .. } if after == timeout), "{error}");
    }
    store.set("here", b"1").unwrap();
    assert_eq!(store.get("here", Duration::ZERO).unwrap(), b"1");
}

#[test]
fn it_works_over_ipv6() {
    let Ok(server) = TcpStoreServer::bind("[::1]:0".parse().unwrap(), StoreConfig::default()) else {
        return; // This machine has no IPv6.
    };
    let store = TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON).unwrap();
    store.set("a", b"1").unwrap();
    assert_eq!(store.get("a", SOON).unwrap(), b"1");
}

fn refusal(server: StoreConfig, client: StoreConfig) -> Refusal {
    let server = serve(server);
    match TcpStore::connect(server.local_addr(), client, SOON) {
        Err(Error::Handshake { with, refusal }) => {
            assert!(with.contains(&server.local_addr().to_string()));
            refusal
        }
        other => panic!("{other:?}"),
    }
}

fn with_secret(text: &str) -> StoreConfig {
    StoreConfig::default().secret(Some(Secret::new(text).unwrap()))
}

#[test]
fn a_client_of_another_job_or_without_the_secret_is_refused() {
    assert_eq!(refusal(StoreConfig::job(1), StoreConfig::job(2)), Refusal::Job);
    assert_eq!(refusal(with_secret("a"), with_secret("b")), Refusal::Authentication);
    assert_eq!(refusal(with_secret("a"), StoreConfig::default()), Refusal::Authentication);
    assert_eq!(refusal(StoreConfig::default(), with_secret("a")), Refusal::Authentication);
    let (_server, store) = pair(with_secret("a"));
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k", SOON).unwrap(), b"v");
}

#[test]
fn a_server_of_another_protocol_is_refused() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    });
    let error = TcpStore::connect(address, StoreConfig::default(), SOON).unwrap_err();
    assert!(matches!(error, Error::Handshake { refusal: Refusal::NotAPeer, .. }), "{error}");
    other.join().unwrap();
}

#[test]
fn a_client_waits_for_a_server_that_starts_late() {
    let (_reserved, address) = reserve();
    thread::scope(|scope| {
        let client = scope.spawn(move || TcpStore::connect(address, StoreConfig::default(), SOON));
        thread::sleep(Duration::from_millis(300));
        let _server = TcpStoreServer::bind(address, StoreConfig::default()).unwrap();
        client.join().unwrap().unwrap();
    });
}

#[test]
fn no_server_is_an_error_with_address_attempts_and_reason() {
    let (_reserved, address) = reserve();
    let began = Instant::now();
    let timeout = Duration::from_millis(500);
    let error = TcpStore::connect(address, StoreConfig::default(), timeout).unwrap_err().to_string();
    assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    assert!(error.contains(&address.to_string()) && error.contains("attempts"), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_server_that_never_answers_is_an_error_at_the_deadline() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let timeout = Duration::from_millis(300);
    let error = TcpStore::connect(address, StoreConfig::default(), timeout).unwrap_err().to_string();
    assert!(error.contains("got no answer"), "{error}");
}

#[test]
fn pending_operations_fail_when_the_server_stops() {
    let (server, store) = pair(StoreConfig::default());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("never", SOON));
        thread::sleep(Duration::from_millis(100));
        drop(server);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    });
}

/// Opens connections of other protocols, and silent ones.
fn disturb(address: SocketAddr) -> Vec<TcpStream> {
    let floods: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: store\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0xff; 10_000],
        b"\x93comm\r\n\x1a\x01\x00\x07\x07",
        b"",
    ];
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(bytes);
        stream
    };
    floods.into_iter().cycle().take(50).map(send).collect()
}

#[test]
fn connections_of_other_protocols_do_not_affect_clients() {
    for config in [StoreConfig::default(), with_secret("a")] {
        let (server, store) = pair(config.clone());
        let held = disturb(server.local_addr());
        store.set("k", b"v").unwrap();
        let late = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
        assert_eq!(late.get("k", SOON).unwrap(), b"v");
        drop(held);
        store.set("k", b"w").unwrap();
        assert_eq!(late.get("k", SOON).unwrap(), b"w");
    }
}

#[test]
fn silent_and_slow_connections_are_closed_in_favour_of_others() {
    let mut config = StoreConfig::default();
    config.handshake_timeout = Duration::from_millis(300);
    config.pending_max = 4;
    let server = serve(config.clone());
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(server.local_addr()).unwrap()).collect();
    let mut slow = TcpStream::connect(server.local_addr()).unwrap();
    let dribble = thread::spawn(move || {
        for byte in b"\x93comm\r\n\x1a\x01\x00\x00\x01".iter().cycle() {
            if slow.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
    let store = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
    store.set("k", b"v").unwrap();
    for mut stream in silent {
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    dribble.join().unwrap();
    assert_eq!(store.get("k", SOON).unwrap(), b"v");
}

#[test]
fn silent_connections_are_closed_before_their_deadline_if_others_connect() {
    let mut config = StoreConfig::default();
    config.handshake_timeout = Duration::from_secs(60);
    config.pending_max = 4;
    let server = serve(config.clone());
    let _silent: Vec<_> = (0..10).map(|_| TcpStream::connect(server.local_addr()).unwrap()).collect();
    TcpStore::connect(server.local_addr(), config, SOON).unwrap();
}

#[test]
fn many_clients_may_connect_at_once() {
    let mut config = StoreConfig::default();
    config.pending_max = 4;
    let server = serve(config.clone());
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| TcpStore::connect(server.local_addr(), config.clone(), SOON).unwrap());
        }
    });
}

#[test]
fn clients_beyond_the_limit_wait_until_another_one_leaves() {
    let mut config = StoreConfig::default();
    config.connections_max = 2;
    let server = serve(config.clone());
    let connect = |timeout| TcpStore::connect(server.local_addr(), config.clone(), timeout);
    let first = connect(SOON).unwrap();
    let _second = connect(SOON).unwrap();
    assert!(matches!(connect(Duration::from_millis(200)), Err(Error::Io { .. })));
    drop(first);
    connect(SOON).unwrap();
}

#[test]
fn a_client_refuses_another_server_at_the_address() {
    let (server, store) = pair(StoreConfig::default());
    let address = server.local_addr();
    // The presence holds the only connection, so that the next operation needs another one.
    let will = LastWill { condition: ("a", b"1"), keys: &["b"], value: b"2" };
    let presence = store.register_last_will(&will, "c", SOON).unwrap();
    server.drain(Duration::ZERO, SOON);
    let other = TcpStoreServer::bind(address, StoreConfig::default()).unwrap();
    let error = store.set("key", b"value").unwrap_err();
    assert!(matches!(&error, Error::Handshake { refusal: Refusal::StoreClosing, .. }), "{error}");
    let its_client = TcpStore::connect(other.local_addr(), StoreConfig::default(), SOON).unwrap();
    assert_eq!(its_client.num_keys().unwrap(), 0);
    drop(presence);
}

//! The client against a server that expects and sends recorded bytes.

mod hostile;
mod peer;

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Refusal, Result, Store};
use socket2::{Domain, Socket, Type};

use self::peer::Peer;
use super::TorchStore;
use crate::store::StoreConfig;

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(60);

/// A key as it is sent: its length, and the key after a slash.
const K: &[u8] = b"\x02\0\0\0\0\0\0\0/k";
const CHECK_K: &[u8] = b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k";
const WAIT_K: &[u8] = b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k";

fn connect(address: SocketAddr) -> Result<TorchStore> {
    let config = StoreConfig { frame_bytes_max: 1000, operation_timeout: SOON, ..StoreConfig::default() };
    TorchStore::connect(address, config, SOON)
}

/// Runs a client against a server that lives for as long as its function.
fn talk(server: impl FnOnce(&TcpListener) + Send, client: impl FnOnce(&TorchStore)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    thread::scope(|scope| {
        let address = listener.local_addr().unwrap();
        scope.spawn(move || server(&listener));
        client(&connect(address).unwrap());
    });
}

fn is_timeout<T>(result: Result<T>, name: &str) -> bool {
    matches!(&result, Err(error @ Error::Timeout { .. }) if error.to_string().contains(name))
}

fn is_io<T>(result: Result<T>, text: &str) -> bool {
    matches!(&result, Err(error @ Error::Io { .. }) if error.to_string().contains(text))
}

#[test]
fn every_operation_sends_the_recorded_bytes_on_one_connection() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(b"\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v", b"");
        peer.exchange(CHECK_K, b"\0");
        peer.exchange(b"\x04\x02\0\0\0\0\0\0\0/k\xfe\xff\xff\xff\xff\xff\xff\xff", b"\x05\0\0\0\0\0\0\0");
        peer.exchange(b"\x08\x02\0\0\0\0\0\0\0/k", b"\x01\0\0\0\0\0\0\0");
        peer.exchange(b"\x08\x02\0\0\0\0\0\0\0/k", b"\0\0\0\0\0\0\0\0");
        let compare_set = b"\x02\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0a\x02\0\0\0\0\0\0\0bc";
        peer.exchange(compare_set, b"\x02\0\0\0\0\0\0\0bc");
        peer.exchange(compare_set, b"\x01\0\0\0\0\0\0\0x");
        let keys = b"\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x03\0\0\0\0\0\0\0/k2";
        peer.exchange(&[b"\x05", &keys[..]].concat(), b"\x01");
        peer.exchange(&[b"\x06", &keys[..]].concat(), b"\0");
        peer.exchange(&[b"\x05", &keys[..]].concat(), b"\0");
        assert!(peer.sees_the_end());
    };
    talk(server, |store| {
        store.set("k", b"v").unwrap();
        assert_eq!(store.add("k", -2).unwrap(), 5);
        assert!(store.delete("k").unwrap());
        assert!(!store.delete("k").unwrap());
        assert_eq!(store.compare_set("k", b"a", b"bc").unwrap(), b"bc");
        assert_eq!(store.compare_set("k", b"a", b"bc").unwrap(), b"x");
        store.wait(&[], SOON).unwrap();
        store.wait(&["k", "k2"], SOON).unwrap();
    });
}

#[test]
fn a_missing_key_differs_from_one_with_the_expected_value() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.expect(b"\x02\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0b");
        peer.send(b"\x01\0\0\0\0\0\0\0a");
        let unlikely = peer.expect_read();
        peer.send(&unlikely);
        peer.expect_read();
        peer.send(b"\x01\0\0\0\0\0\0\0a");
    };
    talk(server, |store| {
        assert_eq!(store.compare_set("k", b"a", b"b").unwrap(), b"");
        assert_eq!(store.compare_set("k", b"a", b"a").unwrap(), b"");
        assert_eq!(store.compare_set("k", b"a", b"a").unwrap(), b"a");
    });
}

#[test]
fn a_get_waits_again_after_a_spurious_wakeup() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\x01");
        peer.exchange(WAIT_K, b"\0");
        peer.exchange(CHECK_K, b"\x01");
        peer.exchange(WAIT_K, b"\0");
        peer.exchange(CHECK_K, b"\0");
        // Deleted in between.
        let unlikely = peer.expect_read();
        peer.send(&unlikely);
        peer.exchange(CHECK_K, b"\0");
        peer.expect_read();
        peer.send(b"\0\0\0\0\0\0\0\0");
    };
    talk(server, |store| assert_eq!(store.get("k", SOON).unwrap(), b""));
}

#[test]
fn a_wait_that_times_out_is_cancelled_and_its_connection_used_again() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\x01");
        loop {
            match peer.receive(1)[..] {
                [6] => peer.expect(&WAIT_K[1..]),
                // The answer to the wait may have been sent before the cancellation arrived.
                [12] => peer.send(b"\0\x01"),
                [5] => peer.exchange(&CHECK_K[1..], b"\x01"),
                [8] => break,
                ref other => panic!("{other:?}"),
            }
        }
        peer.exchange(K, b"\x01\0\0\0\0\0\0\0");
    };
    talk(server, |store| {
        let start = Instant::now();
        assert!(is_timeout(store.get("k", SHORT), "\"k\""));
        assert!(start.elapsed() >= SHORT);
        assert!(is_timeout(store.wait(&["k"], Duration::ZERO), "\"k\""));
        assert!(store.delete("k").unwrap());
    });
}

#[test]
fn the_connection_to_a_silent_server_is_not_used_again() {
    let server = |listener: &TcpListener| {
        let mut silent = Peer::greeted(listener);
        silent.expect(CHECK_K);
        let mut next = Peer::greeted(listener);
        silent.send(b"\0");
        next.exchange(b"\x08", b"");
        next.exchange(K, b"\0\0\0\0\0\0\0\0");
    };
    talk(server, |store| {
        assert!(is_timeout(store.get("k", SHORT), "\"k\""));
        assert!(!store.delete("k").unwrap());
    });
}

#[test]
fn hostile_answers_are_errors_and_end_their_connection() {
    let answers: [(&[u8], &str); 4] = [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "longer than this side accepts"),
        (b"\xe9\x03\0\0\0\0\0\0", "1001 bytes"),
        (b"\x03\0\0\0\0\0\0\0ab", "end of file"),
        (b"", "closed the connection"),
    ];
    for (answer, text) in answers {
        let server = |listener: &TcpListener| {
            let mut peer = Peer::greeted(listener);
            peer.expect(b"\x02\x02\0\0\0\0\0\0\0/k\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0v");
            peer.send(answer);
            drop(peer);
            let mut next = Peer::greeted(listener);
            next.exchange(b"\x08\x02\0\0\0\0\0\0\0/k", b"\x02\0\0\0\0\0\0\0");
            assert!(next.sees_the_end());
        };
        talk(server, |store| {
            assert!(is_io(store.compare_set("k", b"", b"v"), text), "{text}");
            assert!(is_io(store.delete("k"), "is malformed"));
        });
    }
}

#[test]
fn unknown_answers_are_errors() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\x07");
        assert!(peer.sees_the_end());
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\x01");
        peer.exchange(WAIT_K, b"\x01");
        assert!(peer.sees_the_end());
    };
    talk(server, |store| {
        assert!(is_io(store.get("k", SOON), "is malformed"));
        assert!(is_io(store.get("k", SOON), "is malformed"));
    });
}

#[test]
fn an_addition_to_a_text_or_beyond_64_bits_is_invalid() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(b"\x04\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0", b"");
        drop(peer);
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\0");
        peer.expect_read();
        peer.send(b"\x05\0\0\0\0\0\0\0seven");
        peer.exchange(b"\x04\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\x80");
    };
    talk(server, |store| {
        let error = store.add("k", 1).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("seven"), "{error}");
        assert!(matches!(store.add("k", 1), Err(Error::Invalid(_))));
    });
}

#[test]
fn keys_and_values_that_are_too_long_are_not_sent() {
    let server = |listener: &TcpListener| assert!(Peer::greeted(listener).sees_the_end());
    talk(server, |store| {
        let long = "k".repeat(8192);
        assert!(matches!(store.set(&long, b""), Err(Error::Invalid(_))));
        assert!(matches!(store.add(&long, 1), Err(Error::Invalid(_))));
        assert!(matches!(store.wait(&["k", &long], SOON), Err(Error::Invalid(_))));
        assert!(matches!(store.set("k", &[0; 1001]), Err(Error::Invalid(_))));
    });
}

#[test]
fn a_server_of_another_protocol_is_refused() {
    for answer in [&b"HTTP"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut peer = Peer(stream.unwrap());
                peer.receive(10);
                peer.send(answer);
            }
        });
        let error = connect(address).unwrap_err();
        assert!(matches!(error, Error::Handshake { refusal: Refusal::NotAPeer, .. }), "{error}");
    }
}

#[test]
fn a_missing_server_is_named_at_the_deadline() {
    // A bound port, which no other test gets, without a listener.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = taken.local_addr().unwrap().as_socket().unwrap();
    let error = TorchStore::connect(address, StoreConfig::default(), SHORT).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("attempts"), "{error}");
}

#[test]
fn keys_are_checked_and_counted() {
    let server = |listener: &TcpListener| {
        let mut peer = Peer::greeted(listener);
        peer.exchange(CHECK_K, b"\0");
        peer.exchange(CHECK_K, b"\x01");
        peer.exchange(b"\x07", b"\x03\0\0\0\0\0\0\0");
        peer.exchange(b"\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff");
    };
    talk(server, |store| {
        assert!(store.check(&[]).unwrap());
        assert!(store.check(&["k"]).unwrap());
        assert!(!store.check(&["k"]).unwrap());
        assert_eq!(store.num_keys().unwrap(), 3);
        assert!(store.num_keys().is_err());
    });
}

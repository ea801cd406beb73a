//! A store whose clients reach it through a relay that alters bytes.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comm_core::{Error, Refusal, Result, Store};
use comm_tcp::{Secret, StoreConfig, TcpStore, TcpStoreServer};
use common::SOON;
use common::relay::{Alteration, Change, Direction, Tampering, relay};

fn with_secret(secret: &str) -> StoreConfig {
    StoreConfig::default().secret(Some(Secret::new(secret).unwrap()))
}

fn with_checksums() -> StoreConfig {
    let mut config = StoreConfig::default();
    config.checksums = true;
    config
}

fn value(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

const LENGTHS: [usize; 8] = [0, 1, 4095, 16 * 1024, 16 * 1024 + 1, 64 * 1024, 200_000, 1_200_000];

/// Sets and gets values, and checks the values that the store returns.
fn use_store(store: &TcpStore, patience: Duration) -> Result<()> {
    for (at, length) in LENGTHS.into_iter().enumerate() {
        let key = format!("key {at}");
        store.set(&key, &value(length))?;
        assert!(store.get(&key, patience)? == value(length), "a wrong value of {length} bytes");
        assert_eq!(store.add("sum", 3)?, 3 * (at as i64 + 1));
    }
    store.wait(&["key 0", "key 1"], patience)?;
    assert_eq!(store.compare_set("key 1", b"", b"other")?, value(1));
    assert!(store.check(&["key 0", "sum"])? && store.delete("sum")?);
    assert_eq!(store.num_keys()?, LENGTHS.len() as u64);
    Ok(())
}

fn serve(config: &StoreConfig) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), config.clone()).unwrap()
}

#[test]
fn a_protected_store_serves_requests_of_every_length() {
    for config in [StoreConfig::default(), with_checksums(), with_secret("sesame")] {
        let server = serve(&config);
        let store = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
        use_store(&store, SOON).unwrap();
    }
    // A server follows a client that requires checksums, and a client such a server.
    for (servers, clients) in
        [(StoreConfig::default(), with_checksums()), (with_checksums(), StoreConfig::default())]
    {
        let server = serve(&servers);
        use_store(&TcpStore::connect(server.local_addr(), clients, SOON).unwrap(), SOON).unwrap();
    }
}

#[test]
fn a_request_that_exceeds_the_memory_of_a_protected_store_is_refused_and_the_next_one_served() {
    for mut config in [with_checksums(), with_secret("sesame")] {
        config.stored_bytes_max = 100_000;
        let server = serve(&config);
        let store = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
        let error = store.set("k", &value(300_000)).unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        store.set("k", b"v").unwrap();
        assert_eq!(store.get("k", SOON).unwrap(), b"v");
    }
}

/// Uses a store through a relay with one alteration. Returns the outcome, whether the bytes were
/// altered, and the bytes that passed in each direction.
fn through_relay(
    config: &StoreConfig,
    alteration: Option<Alteration>,
    patience: Duration,
) -> (Result<()>, bool, [u64; 2]) {
    let server = serve(config);
    let tampering = Arc::new(Tampering::new(alteration));
    let address = relay(server.local_addr(), &tampering);
    let mut config = config.clone();
    config.operation_timeout = patience;
    let store = TcpStore::connect(address, config, patience);
    let outcome = store.and_then(|store| use_store(&store, patience));
    let passed = [0, 1].map(|side| tampering.passed[side].load(Ordering::Relaxed));
    (outcome, tampering.applied.load(Ordering::Relaxed), passed)
}

#[test]
fn altered_requests_and_responses_are_errors_and_never_values() {
    let mut state = 5_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    for config in [with_checksums(), with_secret("sesame")] {
        let (outcome, _, passed) = through_relay(&config, None, SOON);
        outcome.unwrap();
        std::thread::scope(|scope| {
            for round in 0..40 {
                let direction = [Direction::FromDialer, Direction::FromAcceptor][round % 2];
                let bytes = 1 + below(5000);
                let change = match round / 2 % 4 {
                    0 | 1 => Change::Flip(1 << below(8)),
                    2 => Change::Drop(bytes),
                    _ => Change::Repeat(bytes as usize),
                };
                let at = below(passed[direction as usize]);
                let (config, alteration) = (&config, Alteration { connection: 0, direction, at, change });
                scope.spawn(move || {
                    // Wrong values fail an assertion of `use_store`. If bytes are dropped, the rest
                    // of a frame never arrives. On a busy machine, the time may end before.
                    let attempt = |patience| through_relay(config, Some(alteration), patience);
                    let mut attempts = [Duration::from_secs(2), SOON].into_iter().map(attempt);
                    let altered = attempts.find(|(_, applied, _)| *applied);
                    let (outcome, ..) = altered.unwrap_or_else(|| panic!("not applied: {alteration:?}"));
                    match outcome {
                        Ok(()) => assert!(at < 128, "only a handshake is tried again: {alteration:?}"),
                        Err(Error::Io { .. } | Error::Timeout { .. } | Error::Handshake { .. }) => {}
                        Err(other) => panic!("{other}: {alteration:?}"),
                    }
                });
            }
        });
    }
}

#[test]
fn a_corrupted_response_is_named() {
    let alteration = Alteration {
        connection: 0,
        direction: Direction::FromAcceptor,
        // In the first response, after the handshake.
        at: 96 + 21,
        change: Change::Flip(1),
    };
    for (config, check) in [(with_checksums(), "checksum"), (with_secret("sesame"), "authentication code")] {
        let (outcome, applied, _) = through_relay(&config, Some(alteration), SOON);
        let error = outcome.unwrap_err().to_string();
        assert!(applied && error.contains("altered") && error.contains(check), "{error}");
    }
}

#[test]
fn clients_with_another_secret_or_none_are_refused() {
    let server = serve(&with_secret("sesame"));
    for config in [with_secret("simsim"), StoreConfig::default(), with_checksums()] {
        let error = TcpStore::connect(server.local_addr(), config, SOON).unwrap_err();
        assert!(matches!(error, Error::Handshake { refusal: Refusal::Authentication, .. }), "{error}");
    }
    use_store(&TcpStore::connect(server.local_addr(), with_secret("sesame"), SOON).unwrap(), SOON).unwrap();
}

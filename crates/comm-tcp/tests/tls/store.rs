//! Stores with TLS.

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Refusal, Result, Store};
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};

use crate::common::SOON;
use crate::common::certificates::{Authority, RANK};
use crate::common::stream::content;
use crate::{authority, rank_certificates, secret, store_config, with_secret};

/// The lengths of values: around those of one record, and of what a store reads at a time (1 MiB),
/// after which the rest may have been decrypted already.
const LENGTHS: [usize; 10] = [
    0,
    1,
    4095,
    16 * 1024 + 1,
    64 * 1024,
    200_000,
    (1 << 20) + 1,
    (1 << 20) + 5000,
    (1 << 20) + 20_000,
    3_000_000,
];

pub(crate) fn use_store(store: &TcpStore) -> Result<()> {
    for (at, length) in LENGTHS.into_iter().enumerate() {
        let key = format!("key {at}");
        store.set(&key, &content(length))?;
        assert!(store.get(&key, SOON)? == content(length), "a wrong value of {length} bytes");
        assert_eq!(store.add("sum", 3)?, 3 * (at as i64 + 1));
    }
    store.wait(&["key 0", "key 1"], SOON)?;
    assert!(store.check(&["key 0", "sum"])? && store.delete("sum")?);
    assert_eq!(store.num_keys()?, LENGTHS.len() as u64);
    Ok(())
}

pub(crate) fn serve(config: &StoreConfig) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), config.clone()).unwrap()
}

#[test]
fn a_store_serves_requests_of_every_length() {
    for config in [
        store_config(secret("sesame"), with_secret()),
        store_config(None, rank_certificates()),
        store_config(secret("sesame"), rank_certificates()),
    ] {
        let server = serve(&config);
        let store = TcpStore::connect(server.local_addr(), config, SOON).unwrap();
        use_store(&store).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get("later", SOON));
            thread::sleep(Duration::from_millis(50));
            store.set("later", &content(2_000_000)).unwrap();
            assert!(waiting.join().unwrap().unwrap() == content(2_000_000));
        });
    }
}

#[test]
fn a_store_executes_the_will_of_a_client_that_exits() {
    let config = store_config(secret("sesame"), with_secret());
    let server = serve(&config);
    let connect = || TcpStore::connect(server.local_addr(), config.clone(), SOON).unwrap();
    let (observer, client) = (connect(), connect());
    observer.set("condition", b"yes").unwrap();
    let will = comm_core::LastWill { condition: ("condition", b"yes"), keys: &["will"], value: b"gone" };
    let presence = client.register_last_will(&will, "answer", SOON).unwrap().unwrap();
    assert_eq!(presence.poll().unwrap(), None);
    observer.set("answer", b"here").unwrap();
    let deadline = Instant::now() + SOON;
    while presence.poll().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(presence.poll().unwrap().unwrap(), b"here");
    drop(presence);
    assert_eq!(observer.get("will", SOON).unwrap(), b"gone");
}

#[test]
fn clients_of_a_store_without_tls_or_with_another_secret_or_certificate_are_refused_at_once() {
    let began = Instant::now();
    let refusal = |servers: &StoreConfig, clients: &StoreConfig| {
        let server = serve(servers);
        match TcpStore::connect(server.local_addr(), clients.clone(), SOON) {
            Err(Error::Handshake { with, refusal }) => {
                assert!(with.contains(&server.local_addr().to_string()), "{with}");
                refusal
            }
            other => panic!("{other:?}"),
        }
    };
    let clear = StoreConfig::default().secret(secret("sesame"));
    let tls = store_config(secret("sesame"), with_secret());
    let certified = store_config(None, rank_certificates());
    assert_eq!(refusal(&tls, &clear), Refusal::TlsRequired { here: false });
    assert_eq!(refusal(&clear, &tls), Refusal::TlsRequired { here: true });
    assert_eq!(refusal(&certified, &StoreConfig::default()), Refusal::TlsRequired { here: false });
    assert_eq!(refusal(&tls, &store_config(secret("simsim"), with_secret())), Refusal::Authentication);
    assert_eq!(
        refusal(&certified, &store_config(secret("sesame"), rank_certificates())),
        Refusal::Authentication
    );
    let stranger = store_config(None, authority().trusted_by(&Authority::new("other authority").issue(RANK)));
    for (servers, clients) in
        [(&certified, &stranger), (&stranger, &certified), (&certified, &tls), (&tls, &certified)]
    {
        assert!(matches!(refusal(servers, clients), Refusal::TlsFailed { .. }));
    }
    assert!(began.elapsed() < SOON / 2);
}

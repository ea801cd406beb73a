//! Relays between ranks, and to a store.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Armed, Error, Fabric, IntegrityCheck, Interest, Loss, Transport};
use comm_sim::MemoryStore;
use comm_tcp::{RendezvousConfig, TcpFabric, TcpStore, Tls};

use crate::common::relay::{Alteration, Change, Direction, Tampering, relay, with_relays};
use crate::common::stream::{Random, stream, stream_through, whole};
use crate::common::{SOON, WORLD};
use crate::store::{serve, use_store};
use crate::{protected, rank_certificates, secret, store_config, with_secret};

/// More than the bytes of a handshake in TLS, from either side.
const HANDSHAKE_BYTES_MAX: u64 = 2048;

fn authenticated(tls: &Tls) -> impl Fn(usize) -> RendezvousConfig + Sync {
    |rank| protected(rank, 2, secret("sesame"), Some(tls.clone()))
}

#[test]
fn a_relay_sees_nothing_of_the_bytes() {
    let marker = &whole()[1000..1032];
    for tls in [None, Some(with_secret()), Some(rank_certificates())] {
        for sender in [Direction::FromDialer, Direction::FromAcceptor] {
            let tampering = Arc::new(Tampering::recording());
            let config = |rank| protected(rank, 2, secret("sesame"), tls.clone());
            let (received, _) = stream_through(config, sender, &tampering, SOON).unwrap();
            assert!(received == whole());
            let passed = || tampering.passed.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum::<u64>();
            assert!(passed() > whole().len() as u64);
            // A relay records when a connection has ended.
            let deadline = Instant::now() + SOON;
            let recorded = loop {
                let recorded = tampering.recorded.as_ref().unwrap().lock().unwrap().concat();
                if recorded.len() as u64 >= passed() || Instant::now() > deadline {
                    break recorded;
                }
                thread::sleep(Duration::from_millis(5));
            };
            let shows = |text: &[u8]| recorded.windows(text.len()).any(|window| window == text);
            // Without TLS, authentication codes do not hide anything.
            assert_eq!((shows(marker), shows(b"\x93comm\r\n\x1a")), (tls.is_none(), tls.is_none()));
        }
    }
}

/// Alters one stream at a random position after the handshake.
fn alter(tls: &Tls, random: &mut Random, change: Change) {
    let direction = [Direction::FromDialer, Direction::FromAcceptor][random.below(2) as usize];
    let at = HANDSHAKE_BYTES_MAX + random.below(whole().len() as u64 - HANDSHAKE_BYTES_MAX);
    let alteration = Alteration { connection: 0, direction, at, change };
    let (arrived, _) = stream(authenticated(tls), direction, Some(alteration), SOON);
    let (received, error) = arrived.unwrap();
    assert!(whole().starts_with(&received), "{alteration:?}");
    let sender = if direction == Direction::FromDialer { 1 } else { 0 };
    match error {
        Error::PeerLost { peer, loss: Loss::Corrupted(corruption), .. } => {
            assert_eq!((peer, corruption.check), (sender, IntegrityCheck::TlsRecord), "{alteration:?}");
        }
        // The end of the stream comes before the end of an incomplete record. A changed type or
        // version of a record has no effect.
        Error::PeerLost { peer, loss: Loss::Closed | Loss::Io(_), .. } => {
            assert_eq!(peer, sender);
            let is_cut = matches!(change, Change::Cut | Change::Drop(_));
            assert!(is_cut && received.len() < whole().len() || received == whole(), "{alteration:?}");
        }
        other => panic!("{other}: {alteration:?}"),
    }
}

#[test]
fn altered_bytes_are_an_error_that_names_the_peer_and_never_delivered() {
    let (tls, mut random) = (with_secret(), Random(7));
    for round in 0..40 {
        let length = 1 + random.below(100_000);
        let change = match round % 5 {
            0 | 1 => Change::Flip(1 << random.below(8)),
            2 => Change::Drop(length),
            3 => Change::Repeat(length as usize),
            _ if round % 2 == 0 => Change::Insert(length as usize),
            _ => Change::Cut,
        };
        alter(&tls, &mut random, change);
    }
}

/// Sends until the receiver has ended the stream.
fn send_until_closed(fabric: &TcpFabric) {
    let mut transport = fabric.open(WORLD, Instant::now() + SOON).unwrap();
    let mut waiting = Interest::default();
    waiting.add_send(0);
    while let Ok(sent) = transport.try_send(0, &[IoSlice::new(&[1; 100])]) {
        if sent == 0 && transport.arm(&waiting).unwrap() == Armed::Sleep {
            transport.sleep(None, Duration::from_millis(100)).unwrap();
        }
    }
}

/// Receives a few bytes at a time, and sends one after each, until that fails, which is before a
/// receive does.
fn answer_each(fabric: &TcpFabric) -> Error {
    let mut transport = fabric.open(WORLD, Instant::now() + SOON).unwrap();
    let mut waiting = Interest::default();
    waiting.add_recv(1);
    loop {
        let received = transport.try_recv(1, &mut [0; 100]).unwrap();
        if received == 0 && transport.arm(&waiting).unwrap() == Armed::Sleep {
            transport.sleep(None, Duration::from_millis(100)).unwrap();
        } else if let Err(error) = transport.try_send(1, &[IoSlice::new(&[1])]) {
            return error;
        }
    }
}

#[test]
fn a_send_after_altered_bytes_have_arrived_fails_because_of_them() {
    let alteration =
        Alteration { connection: 0, direction: Direction::FromDialer, at: 100_000, change: Change::Flip(1) };
    let store = with_relays(MemoryStore::default(), Arc::new(Tampering::new(Some(alteration))));
    let tls = with_secret();
    let fabric = |rank| TcpFabric::rendezvous(&store, &authenticated(&tls)(rank)).unwrap();
    let error = thread::scope(|scope| {
        scope.spawn(|| send_until_closed(&fabric(1)));
        answer_each(&fabric(0))
    });
    let Error::PeerLost { peer: 1, loss: Loss::Corrupted(corruption), .. } = error else { panic!("{error}") };
    assert_eq!(corruption.check, IntegrityCheck::TlsRecord);
}

#[test]
fn an_altered_handshake_gives_no_channel_or_an_unaltered_one() {
    // A rank that waits for the rest of a handshake gives up at this time.
    const OPEN_FOR: Duration = Duration::from_secs(3);
    let tls = with_secret();
    thread::scope(|scope| {
        for direction in [Direction::FromDialer, Direction::FromAcceptor] {
            for at in (0..600).step_by(13) {
                let tls = &tls;
                scope.spawn(move || {
                    let change = Change::Flip(1 << (at % 8));
                    let alteration = Alteration { connection: 0, direction, at, change };
                    match stream(authenticated(tls), direction, Some(alteration), OPEN_FOR).0 {
                        Ok((received, error)) => {
                            assert!(whole().starts_with(&received), "{alteration:?}");
                            assert!(matches!(error, Error::PeerLost { .. }), "{error}: {alteration:?}");
                        }
                        Err(Error::Handshake { .. } | Error::Timeout { .. } | Error::PeerLost { .. }) => {}
                        Err(other) => panic!("{other}: {alteration:?}"),
                    }
                });
            }
        }
    });
}

#[test]
fn an_altered_response_of_a_store_is_named() {
    let config = store_config(secret("sesame"), with_secret());
    let server = serve(&config);
    // In the value of the last key.
    let alteration = Alteration {
        connection: 0,
        direction: Direction::FromAcceptor,
        at: 1_000_000,
        change: Change::Flip(1),
    };
    let tampering = Arc::new(Tampering::new(Some(alteration)));
    let address = relay(server.local_addr(), &tampering);
    let store = TcpStore::connect(address, config, SOON).unwrap();
    let error = use_store(&store).unwrap_err().to_string();
    assert!(error.contains("altered") && error.contains("TLS record"), "{error}");
}

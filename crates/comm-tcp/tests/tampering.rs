//! Ranks between which a relay alters bytes.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use comm_core::{Error, IntegrityCheck, Loss, Result, Store};
use comm_sim::MemoryStore;
use comm_tcp::{RendezvousConfig, Secret, TcpFabric};
use common::relay::{Alteration, Change, Direction, Tampering, with_relays};
use common::stream::{Arrived, LENGTHS, Random, compute, whole};
use common::{SOON, config};

/// The protection of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Bare,
    Checksums,
    Authenticated,
}

/// The bytes of a handshake from a dialer and from an acceptor.
const HANDSHAKE_BYTES: [u64; 2] = [48 + 80, 48 + 48];

fn protected(rank: usize, size: usize, mode: Mode) -> RendezvousConfig {
    let mut config = config(rank, size);
    // One side that requires checksums suffices.
    config.tcp.checksums = mode == Mode::Checksums && rank.is_multiple_of(2);
    config.secret = (mode == Mode::Authenticated).then(|| Secret::new("sesame").unwrap());
    config
}

fn stream(
    mode: Mode,
    sender: Direction,
    alteration: Option<Alteration>,
    open_for: Duration,
) -> (Result<Arrived>, u64) {
    common::stream::stream(|rank| protected(rank, 2, mode), sender, alteration, open_for)
}

#[test]
fn a_relay_that_alters_nothing_is_not_noticed() {
    for mode in [Mode::Bare, Mode::Checksums, Mode::Authenticated] {
        for sender in [Direction::FromDialer, Direction::FromAcceptor] {
            let (arrived, passed) = stream(mode, sender, None, SOON);
            let (received, error) = arrived.unwrap();
            assert!(received == whole(), "{mode:?} {sender:?}");
            assert!(matches!(error, Error::PeerLost { loss: Loss::Closed, .. }), "{error}");
            let raw = whole().len() as u64 + HANDSHAKE_BYTES[sender as usize];
            assert_eq!(passed == raw, mode == Mode::Bare, "{passed} bytes");
        }
    }
}

/// Shows that the relay alters the bytes that it should.
#[test]
fn without_protection_altered_bytes_are_delivered() {
    let alteration = Alteration {
        connection: 0,
        direction: Direction::FromDialer,
        at: HANDSHAKE_BYTES[0] + 1000,
        change: Change::Flip(4),
    };
    let (arrived, _) = stream(Mode::Bare, Direction::FromDialer, Some(alteration), SOON);
    let mut expected = whole();
    expected[1000] ^= 4;
    assert!(arrived.unwrap().0 == expected);
}

/// Alters one stream at a random position after the handshake.
fn alter(mode: Mode, random: &mut Random, change: Change) {
    let direction = [Direction::FromDialer, Direction::FromAcceptor][random.below(2) as usize];
    let handshake = HANDSHAKE_BYTES[direction as usize];
    // The checks make the stream a little longer than its content.
    let at = handshake + random.below(whole().len() as u64);
    let alteration = Alteration { connection: 0, direction, at, change };
    let (arrived, _) = stream(mode, direction, Some(alteration), SOON);
    let (received, error) = arrived.unwrap();
    assert!(whole().starts_with(&received), "{alteration:?}");
    let sender = if direction == Direction::FromDialer { 1 } else { 0 };
    let check = match mode {
        Mode::Authenticated => IntegrityCheck::AuthenticationCode,
        _ => IntegrityCheck::Checksum,
    };
    match error {
        Error::PeerLost { peer, loss: Loss::Corrupted(corruption), .. } => {
            assert_eq!((peer, corruption.check), (sender, check), "{alteration:?}");
        }
        // The end of the stream comes before the check of an incomplete frame.
        Error::PeerLost { peer, loss: Loss::Closed | Loss::Io(_), .. }
            if matches!(change, Change::Cut | Change::Drop(_)) =>
        {
            assert_eq!(peer, sender);
            assert!(received.len() < whole().len(), "{alteration:?}");
        }
        other => panic!("{other}: {alteration:?}"),
    }
}

fn alter_often(mode: Mode, seed: u64) {
    let mut random = Random(seed);
    for round in 0..60 {
        let length = 1 + random.below(100_000);
        let change = match round % 5 {
            0 | 1 => Change::Flip(1 << random.below(8)),
            2 => Change::Drop(length),
            3 => Change::Repeat(length as usize),
            _ if round % 2 == 0 => Change::Insert(length as usize),
            _ => Change::Cut,
        };
        alter(mode, &mut random, change);
    }
}

#[test]
fn with_checksums_altered_bytes_are_an_error_and_never_delivered() {
    alter_often(Mode::Checksums, 1);
}

#[test]
fn with_a_secret_altered_bytes_are_an_error_and_never_delivered() {
    alter_often(Mode::Authenticated, 2);
}

/// The first message, of one byte, is the first frame.
#[test]
fn a_whole_frame_that_is_lost_or_repeated_is_an_error() {
    let modes = [
        (Mode::Checksums, 12, IntegrityCheck::Checksum),
        (Mode::Authenticated, 36, IntegrityCheck::AuthenticationCode),
    ];
    for (mode, overhead, check) in modes {
        for direction in [Direction::FromDialer, Direction::FromAcceptor] {
            let (start, frame) = (HANDSHAKE_BYTES[direction as usize], overhead + LENGTHS[0]);
            let lost = (start, Change::Drop(frame as u64), 0);
            let repeated = (start + frame as u64, Change::Repeat(frame), 1);
            for (at, change, intact) in [lost, repeated] {
                let alteration = Alteration { connection: 0, direction, at, change };
                let (received, error) = stream(mode, direction, Some(alteration), SOON).0.unwrap();
                let Error::PeerLost { loss: Loss::Corrupted(corruption), .. } = error else {
                    panic!("{error}")
                };
                assert_eq!((corruption.frame, corruption.check), (intact as u64, check));
                assert_eq!(received, whole()[..intact]);
            }
        }
    }
}

/// A bit of any byte of the handshake.
#[test]
fn an_altered_handshake_gives_no_channel_or_an_unaltered_one() {
    // A rank that waits for the rest of a handshake gives up at this time.
    const OPEN_FOR: Duration = Duration::from_secs(3);
    for mode in [Mode::Checksums, Mode::Authenticated] {
        thread::scope(|scope| {
            for direction in [Direction::FromDialer, Direction::FromAcceptor] {
                for at in (0..HANDSHAKE_BYTES[direction as usize]).step_by(5) {
                    scope.spawn(move || {
                        let change = Change::Flip(1 << (at % 8));
                        let alteration = Alteration { connection: 0, direction, at, change };
                        let (arrived, _) = stream(mode, direction, Some(alteration), OPEN_FOR);
                        match arrived {
                            // The dialer may have tried again, on another connection.
                            Ok((received, error)) => {
                                assert!(whole().starts_with(&received), "{alteration:?}");
                                assert!(matches!(error, Error::PeerLost { .. }), "{error}: {alteration:?}");
                            }
                            Err(error) => assert!(
                                matches!(
                                    error,
                                    Error::Handshake { .. } | Error::Timeout { .. } | Error::PeerLost { .. }
                                ),
                                "{error}: {alteration:?}"
                            ),
                        }
                    });
                }
            }
        });
    }
}

/// The timeout of calls, which no altered bytes must use up: they are detected when they arrive.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs collectives in a world whose connections lead through relays. Returns whether each rank got
/// all results.
fn collectives(size: usize, mode: Mode, alteration: Option<Alteration>) -> (Vec<Result<()>>, bool) {
    let tampering = Arc::new(Tampering::new(alteration));
    let store = with_relays(MemoryStore::default(), Arc::clone(&tampering));
    let run = |rank: usize, store: &dyn Store| {
        compute(TcpFabric::rendezvous(store, &protected(rank, size, mode))?, TIMEOUT)
    };
    let outcomes = thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                scope.spawn({
                    let (run, store) = (&run, &store);
                    move || run(rank, store)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (outcomes, tampering.applied.load(Ordering::Relaxed))
}

#[test]
fn protected_worlds_compute_exact_results() {
    for size in 2..=4 {
        for mode in [Mode::Checksums, Mode::Authenticated] {
            let (outcomes, _) = collectives(size, mode, None);
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
    }
}

/// The connections of a world of two: control, data and messages.
#[test]
fn collectives_and_messages_fail_or_are_exact_if_a_bit_changes() {
    for (mode, seed) in [(Mode::Checksums, 3), (Mode::Authenticated, 4)] {
        let mut random = Random(seed);
        for size in [2, 3] {
            let pairs = size * (size - 1) / 2;
            for round in 0..8 {
                let direction = [Direction::FromDialer, Direction::FromAcceptor][round % 2];
                let alteration = Alteration {
                    connection: random.below(3 * pairs as u64) as usize,
                    direction,
                    at: HANDSHAKE_BYTES[direction as usize] + random.below(200_000),
                    change: Change::Flip(1 << random.below(8)),
                };
                // Wrong results fail an assertion of `collectives`.
                let (outcomes, applied) = collectives(size, mode, Some(alteration));
                let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
                assert_eq!(applied, failed > 0, "{alteration:?}: {outcomes:?}");
            }
        }
    }
}

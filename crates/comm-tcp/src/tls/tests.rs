//! Connections in TLS over pairs of sockets: who can be the other side, and what a stranger costs.

use std::io::{IoSlice, Read, Write};
use std::os::unix::net::UnixStream;

use comm_core::{IntegrityCheck, Refusal};
use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::crypto::ring::cipher_suite;
use rustls::{Connection, ConnectionTrafficSecrets, ContentType, ProtocolVersion};

use super::*;
use crate::handshake::{Handshake, Progress};
use crate::hello::{Greeting, Hello, Role};
use crate::protection::{ProtectionConfig, Read as Outcome};
use crate::secret::Secret;

fn config(secret: &str, tls: &Tls) -> ProtectionConfig {
    let secret = Some(Secret::new(secret).unwrap());
    ProtectionConfig { secret, checksums: false, tls: Some(tls.clone()) }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// One side of a handshake, its socket and its progress.
struct Side {
    handshake: Handshake,
    socket: UnixStream,
    progress: Progress,
}

impl Side {
    fn new(handshake: Handshake, socket: UnixStream) -> Self {
        Self { handshake, socket, progress: Progress::Pending }
    }

    fn advance(&mut self) {
        if matches!(self.progress, Progress::Pending) {
            self.progress = self.handshake.advance(&self.socket).unwrap();
        }
        if let Progress::Authorize(_) = self.progress {
            self.handshake.answer(Ok(()));
            self.progress = self.handshake.advance(&self.socket).unwrap();
        }
    }
}

fn sides(dialer: ProtectionConfig, acceptor: ProtectionConfig) -> [Side; 2] {
    let (near, far) = pair();
    [
        Side::new(Handshake::connect(dialer, Hello::store(7)).unwrap(), near),
        Side::new(Handshake::accept(acceptor).unwrap(), far),
    ]
}

fn run(dialer: ProtectionConfig, acceptor: ProtectionConfig) -> [Progress; 2] {
    let mut sides = sides(dialer, acceptor);
    for _ in 0..10 {
        sides.iter_mut().for_each(Side::advance);
    }
    sides.map(|side| side.progress)
}

fn clear(secret: &str) -> ProtectionConfig {
    ProtectionConfig { secret: Some(Secret::new(secret).unwrap()), checksums: false, tls: None }
}

#[test]
fn processes_with_tls_and_the_same_secret_connect_and_others_get_an_error() {
    let (tls, other) = (Tls::with_secret().unwrap(), Tls::with_secret().unwrap());
    let refused = |refusal| Progress::Refused(refusal);
    assert_eq!(run(config("sesame", &tls), config("sesame", &other)), [Progress::Done, Progress::Done]);
    let wrong = refused(Refusal::Authentication);
    assert_eq!(run(config("sesame", &tls), config("simsim", &tls)), [wrong.clone(), wrong]);
    let [here, there] = [true, false].map(|here| refused(Refusal::TlsRequired { here }));
    assert_eq!(run(config("sesame", &tls), clear("sesame")), [here.clone(), there.clone()]);
    assert_eq!(run(clear("sesame"), config("sesame", &tls)), [there, here]);
}

#[test]
fn other_protocols_are_refused_at_their_first_byte() {
    let tls = Tls::with_secret().unwrap();
    let (mut near, far) = pair();
    let mut acceptor = Handshake::accept(config("sesame", &tls)).unwrap();
    near.write_all(b"G").unwrap();
    assert_eq!(acceptor.advance(&far).unwrap(), Progress::Refused(Refusal::NotAPeer));
    let (near, mut far) = pair();
    let mut dialer = Handshake::connect(config("sesame", &tls), Hello::store(7)).unwrap();
    far.write_all(b"SSH-2.0-").unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::NotAPeer));
}

/// Passes on bytes that have arrived in one connection in TLS to another one.
fn pass_on(from: (&mut TlsSession, &UnixStream), to: (&mut TlsSession, &UnixStream)) -> usize {
    let mut bytes = [0; 4096];
    while !from.0.is_ready() && matches!(from.0.read(from.1), Ok(Outcome::More | Outcome::All)) {}
    let length = from.0.deliver(&mut bytes).unwrap();
    if length > 0 {
        assert_eq!(to.0.send(to.1, &[IoSlice::new(&bytes[..length])], length).unwrap(), length);
    }
    length
}

#[test]
fn a_man_in_the_middle_who_has_all_but_the_secret_is_refused_by_both() {
    let tls = Tls::with_secret().unwrap();
    let ((near, to_dialer), (to_acceptor, far)) = (pair(), pair());
    let mut dialer = Side::new(Handshake::connect(config("sesame", &tls), Hello::store(7)).unwrap(), near);
    let mut acceptor = Side::new(Handshake::accept(config("sesame", &tls)).unwrap(), far);
    let mut front = tls.begin(Role::Acceptor).unwrap();
    let mut back = tls.begin(Role::Dialer).unwrap();
    let (mut forward, mut backward) = (0, 0);
    for _ in 0..10 {
        dialer.advance();
        let negotiated = [front.negotiate(&to_dialer).unwrap(), back.negotiate(&to_acceptor).unwrap()];
        if let [Negotiation::Done(front_binding), Negotiation::Done(back_binding)] = negotiated {
            assert_ne!(front_binding, back_binding);
            forward += pass_on((&mut front, &to_dialer), (&mut back, &to_acceptor));
            backward += pass_on((&mut back, &to_acceptor), (&mut front, &to_dialer));
        }
        acceptor.advance();
    }
    // Both have sent all their messages, which were passed on as they were.
    assert_eq!((forward, backward), (48 + 80, 48 + 48));
    let refused = Progress::Refused(Refusal::Authentication);
    assert_eq!((dialer.progress, acceptor.progress), (refused.clone(), refused));
}

/// Returns both sides of a connection after the TLS handshake. The dialer can extract its keys.
fn sessions() -> [(TlsSession, UnixStream); 2] {
    let tls = Tls::with_secret().unwrap();
    let (near, far) = pair();
    let mut dialer = tls.begin_with_keys().unwrap();
    let mut acceptor = tls.begin(Role::Acceptor).unwrap();
    for _ in 0..3 {
        assert!(!matches!(dialer.negotiate(&near).unwrap(), Negotiation::Failed(_)));
        assert!(!matches!(acceptor.negotiate(&far).unwrap(), Negotiation::Failed(_)));
    }
    let outcomes = [dialer.negotiate(&near).unwrap(), acceptor.negotiate(&far).unwrap()];
    assert!(matches!(&outcomes, [Negotiation::Done(near), Negotiation::Done(far)] if near == far));
    [(dialer, near), (acceptor, far)]
}

/// Receives all that has arrived.
fn receive(session: &mut TlsSession, socket: &UnixStream) -> Result<Vec<u8>, comm_core::Corruption> {
    let (mut all, mut bytes) = (Vec::new(), [0; 777]);
    loop {
        if session.is_ready() {
            let length = session.deliver(&mut bytes)?;
            all.extend_from_slice(&bytes[..length]);
        } else if !matches!(session.read(socket).unwrap(), Outcome::More | Outcome::All) {
            return Ok(all);
        }
    }
}

#[test]
fn bytes_arrive_as_they_were_sent_however_they_are_cut() {
    let [(mut dialer, near), (mut acceptor, far)] = sessions();
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    let (mut sent, mut received) = (0, Vec::new());
    while received.len() < content.len() {
        let rest = &content[sent..];
        let (first, second) = rest.split_at(rest.len().min(5));
        let second = &second[..second.len().min(70_000)];
        sent += dialer
            .send(&near, &[IoSlice::new(first), IoSlice::new(second)], first.len() + second.len())
            .unwrap();
        received.extend(receive(&mut acceptor, &far).unwrap());
        dialer.flush(&near).unwrap();
    }
    assert!(received == content && !dialer.holds_bytes());
}

#[test]
fn nothing_that_was_received_is_left_unready() {
    let [(mut dialer, near), (mut acceptor, far)] = sessions();
    for byte in 0..10 {
        assert_eq!(dialer.send(&near, &[IoSlice::new(&[byte])], 1).unwrap(), 1);
    }
    assert_eq!(acceptor.read(&far).unwrap(), Outcome::All);
    for byte in 0..10 {
        assert!(acceptor.is_ready(), "byte {byte} has left the socket");
        let mut into = [99];
        assert_eq!(acceptor.deliver(&mut into).unwrap(), 1);
        assert_eq!(into, [byte]);
    }
    assert!(!acceptor.is_ready());
}

#[test]
fn no_changed_bit_of_a_record_is_delivered() {
    for byte in 0..5 + 9 + 17 {
        let [(mut dialer, near), (mut acceptor, mut far)] = sessions();
        let before = acceptor.records();
        dialer.send(&near, &[IoSlice::new(b"some text")], 9).unwrap();
        let mut record = [0; 5 + 9 + 17];
        far.read_exact(&mut record).unwrap();
        record[byte] ^= 1 << (byte % 8);
        let (mut wire, socket) = pair();
        wire.write_all(&record).unwrap();
        drop(wire);
        match receive(&mut acceptor, &socket) {
            // TLS ignores the type and the version before an encrypted record, and waits for the
            // rest of a longer one.
            Ok(received) if byte < 3 => assert_eq!(received, b"some text"),
            Ok(received) => assert!(received.is_empty() && matches!(byte, 3 | 4), "byte {byte}"),
            Err(corruption) => {
                assert_eq!((corruption.check, corruption.frame), (IntegrityCheck::TlsRecord, before));
                assert!(!acceptor.holds_bytes(), "the other side is not told");
            }
        }
    }
}

#[test]
fn bytes_arrive_after_the_keys_have_changed() {
    let [mut sides, mut other] = sessions();
    for _ in 0..100 {
        sides.0.change_keys();
        other.0.change_keys();
        for _ in 0..2 {
            std::mem::swap(&mut sides, &mut other);
            assert_eq!(sides.0.send(&sides.1, &[IoSlice::new(b"some text")], 9).unwrap(), 9);
            assert_eq!(receive(&mut other.0, &other.1).unwrap(), b"some text");
        }
    }
}

/// Returns records of a stranger without bytes, which follow the TLS handshake of the session.
fn empty_records(session: TlsSession, count: u64) -> Vec<u8> {
    let Connection::Client(client) = session.into_connection() else { panic!("the dialer is a client") };
    let (first, secrets) = client.dangerous_extract_secrets().unwrap().tx;
    let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("another cipher") };
    let suite = cipher_suite::TLS13_AES_256_GCM_SHA384.tls13().unwrap();
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    let message = || OutboundPlainMessage {
        typ: ContentType::ApplicationData,
        version: ProtocolVersion::TLSv1_2,
        payload: OutboundChunks::Single(&[]),
    };
    (first..first + count).flat_map(|number| encrypter.encrypt(message(), number).unwrap().encode()).collect()
}

/// A stranger could keep the thread that accepts it busy with them, if there were no limit. That of
/// rustls is enough.
#[test]
fn a_flood_of_records_without_bytes_ends_the_connection() {
    let max = 32;
    for (count, is_ended) in [(max, false), (max + 1, true)] {
        let [(dialer, mut near), (mut acceptor, far)] = sessions();
        near.write_all(&empty_records(dialer, count)).unwrap();
        assert_eq!(receive(&mut acceptor, &far).is_err(), is_ended, "{acceptor:?}");
    }
}

/// Returns the memory on the heap that an acceptor holds after these bytes.
fn held_after(bytes: &[u8]) -> (i64, Option<Progress>) {
    let tls = Tls::with_secret().unwrap();
    let (mut near, far) = pair();
    let mut kept = None;
    let mut progress = None;
    let memory = allocation_counter::measure(|| {
        let mut acceptor = Handshake::accept(config("sesame", &tls)).unwrap();
        near.write_all(bytes).unwrap();
        progress = acceptor.advance(&far).ok();
        kept = Some(acceptor);
    });
    (memory.bytes_current, progress)
}

#[test]
fn a_stranger_costs_little_memory_before_it_is_authenticated() {
    let tls = Tls::with_secret().unwrap();
    let (near, mut far) = pair();
    let mut dialer = Handshake::connect(config("simsim", &tls), Hello::store(7)).unwrap();
    dialer.advance(&near).unwrap();
    let mut hello = vec![0; 4096];
    let length = far.read(&mut hello).unwrap();
    hello.truncate(length);
    // The longest record of a handshake, which never ends.
    let mut endless = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    endless.resize(HANDSHAKE_BYTES + 5, 0);
    let too_long = [&[0x16, 3, 1, 0x30, 0, 1, 0, 0xff, 0xff][..], &[0; 0x3000 - 4], &endless].concat();
    let (silent, _) = held_after(&[]);
    let (greeted, _) = held_after(&hello);
    let (longest, pending) = held_after(&endless[..HANDSHAKE_BYTES]);
    let (_, refused) = held_after(&too_long);
    assert_eq!(pending, Some(Progress::Pending));
    assert!(matches!(refused, Some(Progress::Refused(Refusal::TlsFailed { .. }))), "{refused:?}");
    let all = (silent, greeted, longest);
    assert!(silent < 1024 && greeted < GREETED_MAX && longest < LONGEST_MAX, "{all:?}");
}

#[test]
fn a_stranger_in_tls_costs_little_memory_before_it_is_authenticated() {
    let tls = Tls::with_secret().unwrap();
    let (near, far) = pair();
    let mut acceptor = Side::new(Handshake::accept(config("sesame", &tls)).unwrap(), far);
    let mut stranger = tls.begin(Role::Dialer).unwrap();
    let greeting =
        Greeting { authenticates: true, checksums: false, tls: true, role: Role::Dialer, nonce: [7; 32] };
    let mut flood = greeting.encode().to_vec();
    flood.resize(100_000, 0);
    while !matches!(stranger.negotiate(&near).unwrap(), Negotiation::Done(_)) {
        acceptor.advance();
    }
    let sent = stranger.send(&near, &[IoSlice::new(&flood)], flood.len()).unwrap();
    assert!(sent > 3 * (1 << 14), "several of the longest records");
    let memory = allocation_counter::measure(|| acceptor.advance());
    assert_eq!(acceptor.progress, Progress::Refused(Refusal::Authentication));
    assert!(memory.bytes_max < IN_TLS_MAX, "{}", memory.bytes_max);
}

/// The most memory that an acceptor takes in addition for a stranger in TLS.
const IN_TLS_MAX: u64 = 80 * 1024;
/// The most bytes of a TLS handshake.
const HANDSHAKE_BYTES: usize = 16 * 1024;
/// The most memory after a TLS handshake has begun, and after as much of it as is accepted.
const GREETED_MAX: i64 = 16 * 1024;
const LONGEST_MAX: i64 = 40 * 1024;

//! Frames over pairs of sockets, in order and altered.

use std::io::{IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use comm_core::{Corruption, IntegrityCheck};

use super::check::{FrameCheck, LENGTH_BYTES};
use super::gmac::GmacKey;
use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The vectors of NIST (CAVP), of the specification of GCM, and of IEEE 802.1AE.
#[test]
fn gmac_is_that_of_the_standard() {
    let vectors = [
        (
            "78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223",
            "d79cf22d504cc793c3fb6c8a",
            "b96baa8c1c75a671bfb2d08d06be5f36",
            "3e5d486aa2e30b22e040b85723a06e76",
        ),
        (&"00".repeat(32), &"00".repeat(12), "", "530f8afbc74536b9a963b4f1c4cb738b"),
        (
            "e3c08a8f06c6e3ad95a70557b23f75483ce33021a9c72b7025666204c69c0b72",
            "12153524c0895e81b2c28465",
            "d609b1f056637a0d46df998d88e5222ab2c2846512153524c0895e8108000f1011121314151617\
             18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f30313233340001",
            "2f0bc5af409e06d609ea8b7d0fa5ea50",
        ),
    ];
    for (key, nonce, data, code) in vectors {
        let key = GmacKey::new(&hex(key).try_into().unwrap());
        let data = hex(data);
        for piece in 1..=data.len().max(1) {
            let mut state = key.begin();
            data.chunks(piece).for_each(|piece| state.update(piece));
            assert_eq!(key.finish(state, hex(nonce).try_into().unwrap()).to_vec(), hex(code));
        }
    }
}

/// The checks of both sides of a connection.
fn both_sides(secret: Option<&Secret>) -> (Protection, Protection) {
    match secret {
        None => (Protection::checksums(), Protection::checksums()),
        Some(secret) => {
            let side = |role| Protection::authenticated(secret, role, b"messages");
            (side(Role::Dialer), side(Role::Acceptor))
        }
    }
}

fn modes() -> [Option<Secret>; 2] {
    [None, Some(Secret::new("sesame").unwrap())]
}

/// Returns the bytes in which each message becomes one frame, or more.
fn frames(check: FrameCheck, messages: &[&[u8]]) -> Vec<u8> {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut sender = ProtectedSender::new(check);
    let mut bytes = Vec::new();
    for message in messages {
        let mut accepted = 0;
        while accepted < message.len() || !sender.flush(&near).unwrap() {
            let rest = &message[accepted..];
            let (first, second) = rest.split_at(rest.len() / 3);
            let pieces = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
            accepted += sender.send(&near, &pieces, rest.len()).unwrap();
            far.set_nonblocking(true).unwrap();
            let _ = far.read_to_end(&mut bytes);
        }
    }
    drop(near);
    far.set_nonblocking(false).unwrap();
    far.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the bytes that a receiver delivers of these, and its error.
fn received(check: FrameCheck, bytes: &[u8]) -> (Vec<u8>, Option<Corruption>) {
    let (mut near, far) = UnixStream::pair().unwrap();
    let mut receiver = ProtectedReceiver::new(check, 100);
    let mut delivered = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(near.write_all(bytes)));
        let mut into = [0; 1000];
        for turn in 0.. {
            while receiver.is_ready() {
                match receiver.deliver(&mut into[..1 + turn % 1000]) {
                    Ok(more) => delivered.extend_from_slice(&into[..more]),
                    Err(corruption) => return (delivered, Some(corruption)),
                }
            }
            if receiver.read(&far).unwrap() == Read::End {
                break;
            }
        }
        (delivered, None)
    })
}

fn content(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

#[test]
fn messages_of_every_length_around_the_borders_of_frames_arrive() {
    let lengths = [1, 2, 15, 16, 17, 99, 100, 101, 1000].into_iter();
    let borders = (1..=2).flat_map(|frames| {
        let border = frames * PAYLOAD_BYTES_MAX;
        [border - 1, border, border + 1]
    });
    let messages: Vec<Vec<u8>> = lengths.chain(borders).map(content).collect();
    let all: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    for secret in modes() {
        let (dialer, acceptor) = both_sides(secret.as_ref());
        let there = frames(dialer.sending, &all);
        assert!(received(acceptor.receiving, &there) == (messages.concat(), None));
        let back = frames(acceptor.sending, &all);
        assert!(received(dialer.receiving, &back) == (messages.concat(), None));
    }
}

/// `docs/wire-tcp.md` documents these bytes. A change here needs a new version.
#[test]
fn frames_are_pinned_to_the_byte() {
    let (dialer, acceptor) = both_sides(None);
    let frame = frames(dialer.sending, &[b"frame", b"x"]);
    // The CRC32C of 0x05000000 and twelve zeros, of "frame" and 0x01000000 and eight zeros; of
    // 0x01000000, four zeros, 1 and seven zeros; of "x", 0x01000000, 1 and seven zeros.
    let crc = |parts: &[&[u8]]| crc32c::crc32c(&parts.concat()).to_le_bytes();
    let (first, second) = ([0; 8], 1_u64.to_le_bytes());
    let expected = [
        &[5, 0, 0, 0][..],
        &crc(&[&[5, 0, 0, 0], &[0; 4], &first]),
        b"frame",
        &crc(&[b"frame", &[1, 0, 0, 0], &first]),
        &[1, 0, 0, 0],
        &crc(&[&[1, 0, 0, 0], &[0; 4], &second]),
        b"x",
        &crc(&[b"x", &[1, 0, 0, 0], &second]),
    ];
    assert_eq!(frame, expected.concat());
    assert_eq!(received(acceptor.receiving, &frame).0, b"framex");
    let secret = Secret::new("sesame").unwrap();
    let (dialer, _) = both_sides(Some(&secret));
    let frame = frames(dialer.sending, &[b"frame"]);
    let key = GmacKey::new(&secret.derive_key(b"comm-tcp dialer key\0", b"messages"));
    let code = |data: &[u8], part: u8| {
        let mut state = key.begin();
        state.update(data);
        key.finish(state, [part, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    };
    let expected = [&[5, 0, 0, 0][..], &code(&[5, 0, 0, 0], 0), b"frame", &code(b"frame", 1)].concat();
    assert_eq!(frame, expected);
}

#[test]
fn every_changed_bit_is_an_error_in_its_frame() {
    let messages: [&[u8]; 3] = [b"first message", b"2", &content(40)];
    for secret in modes() {
        let (dialer, _) = both_sides(secret.as_ref());
        let overhead = dialer.sending.head_bytes() + dialer.sending.check_bytes();
        let bytes = frames(dialer.sending, &messages);
        let ends: Vec<usize> = messages
            .iter()
            .scan(0, |end, message| {
                *end += message.len() + overhead;
                Some(*end)
            })
            .collect();
        assert_eq!(ends[2], bytes.len());
        let check = match secret {
            None => IntegrityCheck::Checksum,
            Some(_) => IntegrityCheck::AuthenticationCode,
        };
        for bit in 0..8 * bytes.len() {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let frame = ends.iter().filter(|end| **end <= bit / 8).count();
            let (_, acceptor) = both_sides(secret.as_ref());
            let outcome = received(acceptor.receiving, &altered);
            assert_eq!(outcome, (messages[..frame].concat(), Some(Corruption::new(check, frame as u64))));
        }
    }
}

#[test]
fn lost_repeated_and_moved_frames_are_errors() {
    let messages: Vec<Vec<u8>> = (1..=4).map(|at| content(10 * at)).collect();
    for secret in modes() {
        let (dialer, _) = both_sides(secret.as_ref());
        let overhead = dialer.sending.head_bytes() + dialer.sending.check_bytes();
        let all: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let bytes = frames(dialer.sending, &all);
        let mut frames: Vec<&[u8]> = Vec::new();
        let mut rest = &bytes[..];
        for message in &messages {
            let (frame, others) = rest.split_at(message.len() + overhead);
            frames.push(frame);
            rest = others;
        }
        let orders: [(&[usize], usize); 5] =
            [(&[1, 2, 3], 0), (&[0, 2, 3], 1), (&[0, 0, 1], 1), (&[0, 2, 1, 3], 1), (&[0, 1, 2, 3, 3], 4)];
        for (order, intact) in orders {
            let altered: Vec<u8> = order.iter().flat_map(|&at| frames[at].to_vec()).collect();
            let (_, acceptor) = both_sides(secret.as_ref());
            let (delivered, error) = received(acceptor.receiving, &altered);
            assert_eq!(delivered, messages[..intact].concat());
            assert_eq!(error.map(|error| error.frame), Some(intact as u64));
        }
    }
}

#[test]
fn frames_of_another_direction_connection_or_secret_are_errors() {
    let secret = Secret::new("sesame").unwrap();
    let from = |secret: &Secret, role, messages: &[u8]| {
        frames(Protection::authenticated(secret, role, messages).sending, &[b"message"])
    };
    let receive = |bytes: &[u8]| {
        let acceptor = Protection::authenticated(&secret, Role::Acceptor, b"messages");
        received(acceptor.receiving, bytes)
    };
    assert_eq!(receive(&from(&secret, Role::Dialer, b"messages")), (b"message".to_vec(), None));
    let other = Secret::new("simsim").unwrap();
    for bytes in [
        from(&secret, Role::Acceptor, b"messages"),
        from(&secret, Role::Dialer, b"other messages"),
        from(&other, Role::Dialer, b"messages"),
        frames(FrameCheck::crc32c(), &[&content(100)]),
    ] {
        let (delivered, error) = receive(&bytes);
        assert!(delivered.is_empty() && error.is_some());
    }
}

#[test]
fn a_length_out_of_range_is_an_error_even_with_a_right_check() {
    for length in [0, PAYLOAD_BYTES_MAX as u32 + 1, u32::MAX] {
        let head = FrameCheck::crc32c().head(length);
        let bytes = [head.as_slice(), &[0; 100]].concat();
        assert!(received(FrameCheck::crc32c(), &bytes).1.is_some());
    }
    assert_eq!(FrameCheck::crc32c().head_bytes(), LENGTH_BYTES + 4);
}

#[test]
fn the_rest_of_a_frame_is_sent_as_it_was_whatever_is_offered_next() {
    for secret in modes() {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let (dialer, acceptor) = both_sides(secret.as_ref());
        let mut sender = ProtectedSender::new(dialer.sending);
        let (mut accepted, mut bytes, mut buffer) = (Vec::new(), Vec::new(), vec![0; 7001]);
        let mut has_held = false;
        for turn in 0..1000 {
            let offered = vec![turn as u8; 100_000];
            let held = sender.holds_frame();
            let more = sender.send(&near, &[IoSlice::new(&offered)], offered.len()).unwrap();
            accepted.extend_from_slice(&offered[..more]);
            has_held |= held && more == 0;
            if more == 0 {
                let read = far.read(&mut buffer).unwrap();
                bytes.extend_from_slice(&buffer[..read]);
            }
        }
        while !sender.flush(&near).unwrap() {
            let read = far.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..read]);
        }
        drop(near);
        far.read_to_end(&mut bytes).unwrap();
        assert!(has_held && received(acceptor.receiving, &bytes) == (accepted, None));
    }
}

#[test]
fn keys_never_show() {
    let secret = Secret::new("sesame").unwrap();
    let protection = Protection::authenticated(&secret, Role::Dialer, b"messages");
    let text = format!("{protection:?}");
    assert!(text.contains("GmacKey(..)") && text.len() < 300, "{text}");
}

//! Two sides of a handshake, over a pair of sockets.

mod relay;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::hello::{MESSAGE_BYTES_MAX, VERSION};
use crate::secret::Secret;

fn with_secret(text: Option<&str>) -> ProtectionConfig {
    ProtectionConfig { secret: text.map(|text| Secret::new(text).unwrap()), checksums: false, tls: None }
}

/// Runs both sides until each has ended. The acceptor authorizes job 7.
fn handshake(dialer: Option<&str>, acceptor: Option<&str>, job: u64) -> (Progress, Progress) {
    let (near, far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(with_secret(dialer), Hello::store(job)).unwrap();
    let mut acceptor = Handshake::accept(with_secret(acceptor)).unwrap();
    let (mut dialed, mut accepted) = (Progress::Pending, Progress::Pending);
    for _ in 0..10 {
        if dialed == Progress::Pending {
            dialed = dialer.advance(&near).unwrap();
        }
        if accepted == Progress::Pending {
            accepted = acceptor.advance(&far).unwrap();
        }
        if let Progress::Authorize(hello) = accepted {
            acceptor.answer(if hello.job == 7 { Ok(()) } else { Err(Refusal::Job) });
            accepted = acceptor.advance(&far).unwrap();
        }
    }
    (dialed, accepted)
}

#[test]
fn processes_with_the_same_secret_and_job_connect_and_others_get_an_error() {
    let both = |progress: Progress| (progress.clone(), progress);
    let (job, secret) = (Progress::Refused(Refusal::Job), Progress::Refused(Refusal::Authentication));
    assert_eq!(handshake(None, None, 7), both(Progress::Done));
    assert_eq!(handshake(Some("sesame"), Some("sesame"), 7), both(Progress::Done));
    assert_eq!(handshake(None, None, 8), both(job.clone()));
    assert_eq!(handshake(Some("sesame"), Some("sesame"), 8), both(job));
    assert_eq!(handshake(Some("sesame"), Some("simsim"), 7), both(secret.clone()));
    assert_eq!(handshake(Some("sesame"), None, 7), both(secret.clone()));
    assert_eq!(handshake(None, Some("sesame"), 7), both(secret));
}

#[test]
fn bytes_after_the_handshake_stay_in_the_socket() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(ProtectionConfig::NONE, Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(ProtectionConfig::NONE).unwrap();
    dialer.advance(&near).unwrap();
    acceptor.advance(&far).unwrap();
    dialer.advance(&near).unwrap();
    (&near).write_all(b"payload").unwrap();
    assert!(matches!(acceptor.advance(&far).unwrap(), Progress::Authorize(_)));
    acceptor.answer(Ok(()));
    assert_eq!(acceptor.advance(&far).unwrap(), Progress::Done);
    let mut payload = [0; 7];
    far.read_exact(&mut payload).unwrap();
    assert_eq!(&payload, b"payload");
}

#[test]
fn a_reflected_greeting_is_refused() {
    let (near, mut mirror) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(with_secret(Some("sesame")), Hello::store(7)).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Pending);
    let mut echo = [0; GREETING_BYTES];
    mirror.read_exact(&mut echo).unwrap();
    mirror.write_all(&echo).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::NotAPeer));
}

#[test]
fn a_reflected_proof_is_refused() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(with_secret(Some("sesame")), Hello::store(7)).unwrap();
    dialer.advance(&near).unwrap();
    let greeting =
        Greeting { authenticates: true, checksums: false, tls: false, role: Role::Acceptor, nonce: [1; 32] };
    far.write_all(&greeting.encode()).unwrap();
    dialer.advance(&near).unwrap();
    let mut sent = [0; GREETING_BYTES + MESSAGE_BYTES_MAX];
    far.read_exact(&mut sent).unwrap();
    far.write_all(&Verdict(Ok(())).encode()).unwrap();
    far.write_all(&sent[GREETING_BYTES + HELLO_BYTES..]).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::Authentication));
}

#[test]
fn a_replayed_handshake_is_refused() {
    let config = with_secret(Some("sesame"));
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(config.clone(), Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(config.clone()).unwrap();
    let mut recorded = vec![0; GREETING_BYTES];
    dialer.advance(&near).unwrap();
    far.read_exact(&mut recorded).unwrap();
    let (mut replay, accepted) = UnixStream::pair().unwrap();
    replay.write_all(&recorded).unwrap();
    acceptor.advance(&accepted).unwrap();
    let mut greeting = [0; GREETING_BYTES];
    replay.read_exact(&mut greeting).unwrap();
    far.write_all(&greeting).unwrap();
    dialer.advance(&near).unwrap();
    recorded.resize(GREETING_BYTES + MESSAGE_BYTES_MAX, 0);
    far.read_exact(&mut recorded[GREETING_BYTES..]).unwrap();
    replay.write_all(&recorded[GREETING_BYTES..]).unwrap();
    assert!(matches!(acceptor.advance(&accepted).unwrap(), Progress::Authorize(_)), "the original");
    let (mut replay, accepted) = UnixStream::pair().unwrap();
    let mut acceptor = Handshake::accept(config).unwrap();
    replay.write_all(&recorded).unwrap();
    assert_eq!(acceptor.advance(&accepted).unwrap(), Progress::Refused(Refusal::Authentication));
}

/// Runs both sides, whose messages pass through `alter` with their numbers.
fn altered(
    [dialer, acceptor]: [ProtectionConfig; 2],
    mut alter: impl FnMut(usize, &mut [u8]),
) -> (Progress, Progress, bool) {
    let ((near, mut near_wire), (far, mut far_wire)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let mut dialer = Handshake::connect(dialer, Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(acceptor).unwrap();
    let (mut dialed, mut accepted) = (Progress::Pending, Progress::Pending);
    let lengths = [GREETING_BYTES, GREETING_BYTES, HELLO_BYTES + PROOF_BYTES, VERDICT_BYTES + PROOF_BYTES];
    for (number, length) in lengths.into_iter().enumerate() {
        let mut message = vec![0; length];
        let (from, to) =
            if number % 2 == 0 { (&mut near_wire, &mut far_wire) } else { (&mut far_wire, &mut near_wire) };
        if number % 2 == 0 {
            dialed = dialer.advance(&near).unwrap();
        } else {
            accepted = acceptor.advance(&far).unwrap();
            if let Progress::Authorize(_) = accepted {
                acceptor.answer(Ok(()));
                accepted = acceptor.advance(&far).unwrap();
            }
        }
        from.set_nonblocking(true).unwrap();
        if from.read_exact(&mut message).is_err() {
            break;
        }
        alter(number, &mut message);
        to.write_all(&message).unwrap();
    }
    if dialed == Progress::Pending {
        dialed = dialer.advance(&near).unwrap();
    }
    let agree = dialer.protection().is_some() == acceptor.protection().is_some();
    (dialed, accepted, agree)
}

#[test]
fn sides_use_checksums_if_one_of_them_requires_them() {
    let config = |checksums| ProtectionConfig { secret: None, checksums, tls: None };
    for (dialer, acceptor) in [(false, false), (false, true), (true, false), (true, true)] {
        let configs = [config(dialer), config(acceptor)];
        let outcome = altered(configs.clone(), |_, _| {});
        assert_eq!(outcome, (Progress::Done, Progress::Done, true));
        let (near, far) = UnixStream::pair().unwrap();
        let [dialer_config, acceptor_config] = configs;
        let mut dialing = Handshake::connect(dialer_config, Hello::store(7)).unwrap();
        let mut accepting = Handshake::accept(acceptor_config).unwrap();
        dialing.advance(&near).unwrap();
        accepting.advance(&far).unwrap();
        dialing.advance(&near).unwrap();
        assert_eq!(dialing.protection().is_some(), dialer || acceptor);
        assert_eq!(accepting.protection().is_some(), dialer || acceptor);
    }
}

#[test]
fn with_checksums_no_changed_bit_completes_the_handshake() {
    let config = |checksums| ProtectionConfig { secret: None, checksums, tls: None };
    let lengths = [GREETING_BYTES, GREETING_BYTES, HELLO_BYTES + PROOF_BYTES, VERDICT_BYTES + PROOF_BYTES];
    for configs in
        [[config(true), config(true)], [config(true), config(false)], [config(false), config(true)]]
    {
        for (number, length) in lengths.into_iter().enumerate() {
            for bit in 0..8 * length {
                let (dialed, accepted, _) = altered(configs.clone(), |at, message| {
                    if at == number {
                        message[bit / 8] ^= 1 << (bit % 8);
                    }
                });
                let both = (&dialed, &accepted) == (&Progress::Done, &Progress::Done);
                assert!(!both, "bit {bit} of message {number}");
                assert_ne!(dialed, Progress::Done, "bit {bit} of message {number}");
            }
        }
    }
}

#[test]
fn another_version_gets_our_greeting() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let mut acceptor = Handshake::accept(ProtectionConfig::NONE).unwrap();
    let mut greeting =
        Greeting { authenticates: false, checksums: false, tls: false, role: Role::Dialer, nonce: [1; 32] }
            .encode();
    greeting[8] = 9;
    near.write_all(&greeting[..10]).unwrap();
    let refused = Progress::Refused(Refusal::Version { ours: VERSION, theirs: 9 });
    assert_eq!(acceptor.advance(&far).unwrap(), refused);
    let mut reply = [0; GREETING_BYTES];
    near.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..10], &acceptor.ours.encode()[..10]);
}

#[test]
fn a_text_protocol_is_refused_at_its_first_byte() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let mut acceptor = Handshake::accept(ProtectionConfig::NONE).unwrap();
    near.write_all(b"G").unwrap();
    assert_eq!(acceptor.advance(&far).unwrap(), Progress::Refused(Refusal::NotAPeer));
}

#[test]
fn an_unknown_purpose_is_answered_with_a_refusal() {
    let (near, far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(ProtectionConfig::NONE, Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(ProtectionConfig::NONE).unwrap();
    dialer.advance(&near).unwrap();
    acceptor.advance(&far).unwrap();
    dialer.outgoing.put(&[9; HELLO_BYTES], &[0; PROOF_BYTES]);
    dialer.await_bytes(HandshakeStep::Verdict, VERDICT_BYTES + PROOF_BYTES);
    dialer.advance(&near).unwrap();
    assert_eq!(acceptor.advance(&far).unwrap(), Progress::Refused(Refusal::NotAPeer));
    let mut verdict = [0; VERDICT_BYTES + PROOF_BYTES];
    (&near).read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[..VERDICT_BYTES], Verdict(Err(Refusal::NotAPeer)).encode());
}

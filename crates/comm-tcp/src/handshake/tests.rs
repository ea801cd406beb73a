//! Two sides of a handshake, over a pair of sockets.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::hello::{MESSAGE_BYTES_MAX, VERSION};

/// Runs both sides until each has ended. The acceptor authorizes job 7.
fn handshake(dialer: Option<&str>, acceptor: Option<&str>, job: u64) -> (Progress, Progress) {
    let (near, far) = UnixStream::pair().unwrap();
    let secret = |text: Option<&str>| text.map(|text| Secret::new(text).unwrap());
    let mut dialer = Handshake::connect(secret(dialer), Hello::store(job)).unwrap();
    let mut acceptor = Handshake::accept(secret(acceptor)).unwrap();
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
    let mut dialer = Handshake::connect(None, Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(None).unwrap();
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
    let mut dialer = Handshake::connect(Some(Secret::new("sesame").unwrap()), Hello::store(7)).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Pending);
    let mut echo = [0; GREETING_BYTES];
    mirror.read_exact(&mut echo).unwrap();
    mirror.write_all(&echo).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::NotAPeer));
}

#[test]
fn a_reflected_proof_is_refused() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(Some(Secret::new("sesame").unwrap()), Hello::store(7)).unwrap();
    dialer.advance(&near).unwrap();
    let greeting = Greeting { authenticates: true, role: Role::Acceptor, nonce: [1; 32] };
    far.write_all(&greeting.encode()).unwrap();
    dialer.advance(&near).unwrap();
    let mut sent = [0; GREETING_BYTES + MESSAGE_BYTES_MAX];
    far.read_exact(&mut sent).unwrap();
    far.write_all(&Verdict(Ok(())).encode()).unwrap();
    far.write_all(&sent[GREETING_BYTES + HELLO_BYTES..]).unwrap();
    assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::Authentication));
}

#[test]
fn another_version_gets_our_greeting() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let mut acceptor = Handshake::accept(None).unwrap();
    let mut greeting = Greeting { authenticates: false, role: Role::Dialer, nonce: [1; 32] }.encode();
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
    let mut acceptor = Handshake::accept(None).unwrap();
    near.write_all(b"G").unwrap();
    assert_eq!(acceptor.advance(&far).unwrap(), Progress::Refused(Refusal::NotAPeer));
}

#[test]
fn an_unknown_purpose_is_answered_with_a_refusal() {
    let (near, far) = UnixStream::pair().unwrap();
    let mut dialer = Handshake::connect(None, Hello::store(7)).unwrap();
    let mut acceptor = Handshake::accept(None).unwrap();
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

#[test]
fn arbitrary_bytes_end_the_handshake_or_leave_it_waiting() {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let greeting = Greeting { authenticates: false, role: Role::Dialer, nonce: [3; 32] }.encode();
    let valid = [&greeting[..], &Hello::store(7).encode(), &[0; PROOF_BYTES]].concat();
    for _ in 0..2000 {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut acceptor = Handshake::accept(None).unwrap();
        let mut bytes = valid.clone();
        for _ in 0..random() % 4 {
            let at = random() % bytes.len();
            bytes[at] ^= random() as u8;
        }
        bytes.truncate(random() % (valid.len() + 1));
        for piece in bytes.chunks(1 + random() % 60) {
            near.write_all(piece).unwrap();
            match acceptor.advance(&far).unwrap() {
                Progress::Authorize(hello) => {
                    acceptor.answer(if hello.job == 7 { Ok(()) } else { Err(Refusal::Job) })
                }
                Progress::Pending | Progress::Done => {}
                Progress::Refused(_) => break,
            }
        }
    }
}

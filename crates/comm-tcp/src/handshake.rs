//! How two processes make sure of each other before anything else is said on a connection.
//!
//! Four messages of fixed length: the dialer greets, the acceptor greets, the dialer says what it wants (the hello),
//! the acceptor says whether it agrees (the verdict). Hello and verdict each carry a proof that the side knows the
//! shared secret, over all that was said so far. The same handshake serves the store and the lanes.
//!
//! A [`Handshake`] never blocks and never reads beyond its last message, so that what follows is left in the socket.

use std::io;
use std::os::fd::AsFd;

use comm_core::Refusal;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::hello::{
    GREETING_BYTES, Greeting, HELLO_BYTES, Hello, MESSAGE_BYTES_MAX, Role, VERDICT_BYTES, Verdict,
};
use crate::secret::{PROOF_BYTES, Secret};

/// Where a handshake stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The socket must become readable, or writable if [`Handshake::wants_write`].
    Pending,
    /// The dialer is who it says, and wants this. To be answered with [`Handshake::judge`].
    Judge(Hello),
    /// Both sides agree. The connection is open.
    Done,
    /// One side refused. The connection is of no use.
    Refused(Refusal),
}

/// One side of one handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    secret: Option<Secret>,
    ours: Greeting,
    /// The dialer's hello; what the acceptor holds before it has read one means nothing.
    hello: Hello,
    state: State,
    incoming: Incoming,
    outgoing: Outgoing,
    /// All that was said so far, without the proofs.
    said: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Greeting,
    Hello,
    Judging,
    Verdict,
    Ended(Result<(), Refusal>),
}

impl Handshake {
    /// The side that connected, and what it wants.
    pub(crate) fn dial(secret: Option<Secret>, hello: Hello) -> io::Result<Self> {
        let mut handshake = Self::new(Role::Dialer, secret, hello)?;
        handshake.greet();
        Ok(handshake)
    }

    /// The side that accepted.
    pub(crate) fn accept(secret: Option<Secret>) -> io::Result<Self> {
        Self::new(Role::Acceptor, secret, Hello::store(0))
    }

    fn new(role: Role, secret: Option<Secret>, hello: Hello) -> io::Result<Self> {
        let mut nonce = [0; 32];
        fill_random(&mut nonce)?;
        Ok(Self {
            role,
            ours: Greeting { authenticates: secret.is_some(), role, nonce },
            secret,
            hello,
            state: State::Greeting,
            incoming: Incoming::new(GREETING_BYTES),
            outgoing: Outgoing::default(),
            said: Vec::with_capacity(2 * GREETING_BYTES + HELLO_BYTES + VERDICT_BYTES),
        })
    }

    /// Goes on until the socket would block, or the handshake ends or waits for a judgement.
    ///
    /// # Errors
    /// What the socket said; [`io::ErrorKind::UnexpectedEof`] if the other side closed it.
    pub(crate) fn advance(&mut self, socket: impl AsFd) -> io::Result<Progress> {
        loop {
            if !self.outgoing.flush(&socket)? {
                return Ok(Progress::Pending);
            }
            match &self.state {
                State::Judging => return Ok(Progress::Judge(self.hello)),
                State::Ended(Ok(())) => return Ok(Progress::Done),
                State::Ended(Err(refusal)) => return Ok(Progress::Refused(refusal.clone())),
                State::Greeting | State::Hello | State::Verdict => {}
            }
            let complete = self.incoming.fill(&socket)?;
            let outcome = match self.state {
                State::Greeting => self.check_greeting(),
                _ => Ok(()),
            };
            match outcome {
                Err(refusal) => self.state = State::Ended(Err(refusal)),
                Ok(()) if complete => self.digest(),
                Ok(()) => return Ok(Progress::Pending),
            }
        }
    }

    /// Answers the hello.
    pub(crate) fn judge(&mut self, verdict: Result<(), Refusal>) {
        let encoded = Verdict(verdict.clone()).encode();
        self.said.extend_from_slice(&encoded);
        self.outgoing.put(&encoded, &self.proof());
        self.state = State::Ended(verdict);
    }

    /// Whether the handshake waits for room to send, not for bytes to read.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Greets a newer or older version too, so that it can name both versions.
    fn check_greeting(&mut self) -> Result<(), Refusal> {
        let outcome = Greeting::check_prefix(self.incoming.bytes());
        if matches!(outcome, Err(Refusal::Version { .. })) && self.role == Role::Acceptor {
            self.greet();
        }
        outcome
    }

    fn greet(&mut self) {
        let greeting = self.ours.encode();
        self.said.extend_from_slice(&greeting);
        self.outgoing.put(&greeting, &[]);
    }

    /// A whole message is there.
    fn digest(&mut self) {
        let outcome = match self.state {
            State::Greeting => self.digest_greeting(),
            State::Hello => self.digest_hello(),
            _ => self.digest_verdict(),
        };
        if let Err(refusal) = outcome {
            self.state = State::Ended(Err(refusal));
        }
    }

    fn digest_greeting(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message().ok_or(Refusal::Stranger)?;
        let theirs = Greeting::decode(&bytes, self.role.other())?;
        self.said.extend_from_slice(&bytes);
        if self.role == Role::Acceptor {
            self.greet();
        }
        if theirs.authenticates != self.ours.authenticates {
            return Err(Refusal::Authentication);
        }
        if self.role == Role::Dialer {
            let hello = self.hello.encode();
            self.said.extend_from_slice(&hello);
            self.outgoing.put(&hello, &self.proof());
            self.expect(State::Verdict, VERDICT_BYTES + PROOF_BYTES);
        } else {
            self.expect(State::Hello, HELLO_BYTES + PROOF_BYTES);
        }
        Ok(())
    }

    /// A dialer that fails to prove itself is told so, but nothing it said is looked at.
    fn digest_hello(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message::<HELLO_BYTES>().ok_or(Refusal::Stranger)?;
        self.said.extend_from_slice(&bytes);
        if !self.proven(self.incoming.behind(HELLO_BYTES)) {
            self.outgoing.put(&Verdict(Err(Refusal::Authentication)).encode(), &[0; PROOF_BYTES]);
            return Err(Refusal::Authentication);
        }
        self.hello = Hello::decode(&bytes).ok_or(Refusal::Stranger)?;
        self.state = State::Judging;
        Ok(())
    }

    /// Without a proof any verdict means that the secrets differ.
    fn digest_verdict(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message::<VERDICT_BYTES>().ok_or(Refusal::Stranger)?;
        self.said.extend_from_slice(&bytes);
        if !self.proven(self.incoming.behind(VERDICT_BYTES)) {
            return Err(Refusal::Authentication);
        }
        self.state = State::Ended(Verdict::decode(&bytes, &self.hello).0);
        Ok(())
    }

    fn expect(&mut self, state: State, bytes: usize) {
        self.state = state;
        self.incoming = Incoming::new(bytes);
    }

    /// Our proof over all that was said so far, or zeros.
    fn proof(&self) -> [u8; PROOF_BYTES] {
        self.secret.as_ref().map_or([0; PROOF_BYTES], |secret| secret.prove(self.role.label(), &self.said))
    }

    /// Whether this is the other side's proof over all that was said so far.
    fn proven(&self, proof: &[u8]) -> bool {
        self.secret
            .as_ref()
            .is_none_or(|secret| secret.verifies(self.role.other().label(), &self.said, proof))
    }
}

/// Bytes that nobody can guess.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A message of known length that is arriving.
#[derive(Debug)]
struct Incoming {
    bytes: [u8; MESSAGE_BYTES_MAX],
    expected: usize,
    filled: usize,
}

impl Incoming {
    const fn new(expected: usize) -> Self {
        Self { bytes: [0; MESSAGE_BYTES_MAX], expected, filled: 0 }
    }

    /// Reads what has arrived of the message, and returns whether it is whole.
    fn fill(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.filled < self.expected {
            let into = &mut self.bytes[self.filled..self.expected];
            match rustix::net::recv(&socket, into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((more, _)) => self.filled += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    fn message<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes().first_chunk()
    }

    fn behind(&self, at: usize) -> &[u8] {
        self.bytes().get(at..).unwrap_or_default()
    }
}

/// A message that is being sent.
#[derive(Debug)]
struct Outgoing {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
    sent: usize,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self { bytes: [0; MESSAGE_BYTES_MAX], len: 0, sent: 0 }
    }
}

impl Outgoing {
    fn put(&mut self, message: &[u8], proof: &[u8]) {
        let len = message.len() + proof.len();
        self.bytes[..message.len()].copy_from_slice(message);
        self.bytes[message.len()..len].copy_from_slice(proof);
        self.len = len;
        self.sent = 0;
    }

    const fn is_empty(&self) -> bool {
        self.sent == self.len
    }

    /// Sends what can go, and returns whether that was all.
    fn flush(&mut self, socket: impl AsFd) -> io::Result<bool> {
        while self.sent < self.len {
            let rest = &self.bytes[self.sent..self.len];
            match rustix::net::send(&socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(more) => self.sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Runs both sides until each has ended. The acceptor judges by job 7.
    fn meet(dialer: Option<&str>, acceptor: Option<&str>, job: u64) -> (Progress, Progress) {
        let (near, far) = UnixStream::pair().unwrap();
        let secret = |text: Option<&str>| text.map(|text| Secret::new(text).unwrap());
        let mut dialer = Handshake::dial(secret(dialer), Hello::store(job)).unwrap();
        let mut acceptor = Handshake::accept(secret(acceptor)).unwrap();
        let (mut dialed, mut accepted) = (Progress::Pending, Progress::Pending);
        for _ in 0..10 {
            if dialed == Progress::Pending {
                dialed = dialer.advance(&near).unwrap();
            }
            if accepted == Progress::Pending {
                accepted = acceptor.advance(&far).unwrap();
            }
            if let Progress::Judge(hello) = accepted {
                acceptor.judge(if hello.job == 7 { Ok(()) } else { Err(Refusal::Job) });
                accepted = acceptor.advance(&far).unwrap();
            }
        }
        (dialed, accepted)
    }

    #[test]
    fn sides_with_the_same_secret_or_none_agree() {
        assert_eq!(meet(None, None, 7), (Progress::Done, Progress::Done));
        assert_eq!(meet(Some("sesame"), Some("sesame"), 7), (Progress::Done, Progress::Done));
    }

    #[test]
    fn both_sides_learn_why_they_do_not_agree() {
        let both = |refusal: Refusal| (Progress::Refused(refusal.clone()), Progress::Refused(refusal));
        assert_eq!(meet(None, None, 8), both(Refusal::Job));
        assert_eq!(meet(Some("sesame"), Some("sesame"), 8), both(Refusal::Job));
        assert_eq!(meet(Some("sesame"), Some("simsim"), 7), both(Refusal::Authentication));
        assert_eq!(meet(Some("sesame"), None, 7), both(Refusal::Authentication));
        assert_eq!(meet(None, Some("sesame"), 7), both(Refusal::Authentication));
    }

    #[test]
    fn what_follows_the_handshake_stays_in_the_socket() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut dialer = Handshake::dial(None, Hello::store(7)).unwrap();
        let mut acceptor = Handshake::accept(None).unwrap();
        dialer.advance(&near).unwrap();
        acceptor.advance(&far).unwrap();
        dialer.advance(&near).unwrap();
        (&near).write_all(b"payload").unwrap();
        assert!(matches!(acceptor.advance(&far).unwrap(), Progress::Judge(_)));
        acceptor.judge(Ok(()));
        assert_eq!(acceptor.advance(&far).unwrap(), Progress::Done);
        let mut payload = [0; 7];
        far.read_exact(&mut payload).unwrap();
        assert_eq!(&payload, b"payload");
    }

    #[test]
    fn a_secret_holder_that_hears_its_own_words_refuses() {
        let (near, mut mirror) = UnixStream::pair().unwrap();
        let mut dialer = Handshake::dial(Some(Secret::new("sesame").unwrap()), Hello::store(7)).unwrap();
        assert_eq!(dialer.advance(&near).unwrap(), Progress::Pending);
        let mut echo = [0; GREETING_BYTES];
        mirror.read_exact(&mut echo).unwrap();
        mirror.write_all(&echo).unwrap();
        assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::Stranger));
    }

    #[test]
    fn a_reflected_proof_does_not_count() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut dialer = Handshake::dial(Some(Secret::new("sesame").unwrap()), Hello::store(7)).unwrap();
        dialer.advance(&near).unwrap();
        let greeting = Greeting { authenticates: true, role: Role::Acceptor, nonce: [1; 32] };
        far.write_all(&greeting.encode()).unwrap();
        dialer.advance(&near).unwrap();
        let mut said = [0; GREETING_BYTES + MESSAGE_BYTES_MAX];
        far.read_exact(&mut said).unwrap();
        far.write_all(&Verdict(Ok(())).encode()).unwrap();
        far.write_all(&said[GREETING_BYTES + HELLO_BYTES..]).unwrap();
        assert_eq!(dialer.advance(&near).unwrap(), Progress::Refused(Refusal::Authentication));
    }

    #[test]
    fn another_version_is_told_ours() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut acceptor = Handshake::accept(None).unwrap();
        let mut greeting = Greeting { authenticates: false, role: Role::Dialer, nonce: [1; 32] }.encode();
        greeting[8] = 2;
        near.write_all(&greeting[..10]).unwrap();
        let refused = Progress::Refused(Refusal::Version { ours: 1, theirs: 2 });
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
        assert_eq!(acceptor.advance(&far).unwrap(), Progress::Refused(Refusal::Stranger));
    }
}

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
use comm_rendezvous::random_bytes;

use crate::hello::{GREETING_BYTES, Greeting, HELLO_BYTES, Hello, Role, VERDICT_BYTES, Verdict};
use crate::message::{Incoming, Outgoing};
use crate::secret::{PROOF_BYTES, Secret};

/// Where a handshake stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The socket must become readable, or writable if [`Handshake::wants_write`].
    Pending,
    /// The dialer is authenticated, and wants this. To be answered with [`Handshake::answer`].
    Authorize(Hello),
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
    Authorizing,
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
        let nonce = random_bytes()?;
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

    /// Goes on until the socket would block, or the handshake ends or waits for [`Handshake::answer`].
    ///
    /// # Errors
    /// What the socket said; [`io::ErrorKind::UnexpectedEof`] if the other side closed it.
    pub(crate) fn advance(&mut self, socket: impl AsFd) -> io::Result<Progress> {
        loop {
            if !self.outgoing.flush(&socket)? {
                return Ok(Progress::Pending);
            }
            match &self.state {
                State::Authorizing => return Ok(Progress::Authorize(self.hello)),
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
    pub(crate) fn answer(&mut self, verdict: Result<(), Refusal>) {
        let encoded = Verdict(verdict.clone()).encode();
        self.said.extend_from_slice(&encoded);
        self.outgoing.put(&encoded, &self.proof());
        self.state = State::Ended(verdict);
    }

    /// Whether the other side has begun the handshake as this protocol does.
    pub(crate) const fn has_greeted(&self) -> bool {
        !matches!(self.state, State::Greeting)
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
        let theirs = Greeting::decode(&bytes, self.role.other()).map_err(|_| Refusal::Stranger)?;
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
        match Hello::decode(&bytes) {
            Ok(hello) => {
                self.hello = hello;
                self.state = State::Authorizing;
            }
            Err(_) => self.answer(Err(Refusal::Stranger)),
        }
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

#[cfg(test)]
mod tests;

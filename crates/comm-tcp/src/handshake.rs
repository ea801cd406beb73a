//! The handshake of two processes at the start of a connection.
//!
//! It has four messages of fixed length: the greeting of the dialer, the greeting of the acceptor,
//! the hello, which is the request of the dialer, and the verdict, which is the reply of the
//! acceptor. The hello and the verdict each carry a proof, over the transcript so far, that the
//! sender knows the shared secret, or else a checksum. Both also agree on the protection of later
//! bytes. The store and the channels use the same handshake.
//!
//! A [`Handshake`] never blocks and never reads beyond its last message, so that later bytes stay
//! in the socket.

use std::io;
use std::os::fd::AsFd;

use comm_core::{Refusal, wire};
use comm_rendezvous::random_bytes;

use crate::hello::{GREETING_BYTES, Greeting, HELLO_BYTES, Hello, Role, VERDICT_BYTES, Verdict};
use crate::message::{Incoming, Outgoing};
use crate::protection::{Protection, ProtectionConfig};
use crate::secret::PROOF_BYTES;

/// The progress of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The socket must become readable, or writable if [`Handshake::wants_write`].
    Pending,
    /// The dialer is authenticated and has sent this request, which [`Handshake::answer`] answers.
    Authorize(Hello),
    /// The handshake is complete. The connection is open.
    Done,
    /// One side has refused the other. The connection cannot be used.
    Refused(Refusal),
}

/// One side of one handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    config: ProtectionConfig,
    ours: Greeting,
    /// Whether a side requires checksums, once both have greeted.
    checksums: bool,
    /// The hello of the dialer; a placeholder on the acceptor until it has received one.
    hello: Hello,
    state: HandshakeStep,
    incoming: Incoming,
    outgoing: Outgoing,
    /// All messages so far, without the proofs.
    transcript: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HandshakeStep {
    Greeting,
    Hello,
    Authorizing,
    Verdict,
    Ended(Result<(), Refusal>),
}

impl Handshake {
    /// Begins the handshake of the side that connected, with its request.
    pub(crate) fn connect(config: ProtectionConfig, hello: Hello) -> io::Result<Self> {
        let mut handshake = Self::new(Role::Dialer, config, hello)?;
        handshake.send_greeting();
        Ok(handshake)
    }

    /// Begins the handshake of the side that accepted.
    pub(crate) fn accept(config: ProtectionConfig) -> io::Result<Self> {
        Self::new(Role::Acceptor, config, Hello::store(0))
    }

    fn new(role: Role, config: ProtectionConfig, hello: Hello) -> io::Result<Self> {
        let (nonce, checksums) = (random_bytes()?, config.checksums);
        Ok(Self {
            role,
            ours: Greeting { authenticates: config.secret.is_some(), checksums, role, nonce },
            config,
            checksums,
            hello,
            state: HandshakeStep::Greeting,
            incoming: Incoming::new(GREETING_BYTES),
            outgoing: Outgoing::default(),
            transcript: Vec::with_capacity(2 * GREETING_BYTES + HELLO_BYTES + VERDICT_BYTES),
        })
    }

    /// Continues until the socket would block, or the handshake ends or waits for
    /// [`Handshake::answer`].
    ///
    /// # Errors
    /// The error of the socket; [`io::ErrorKind::UnexpectedEof`] if the other side closed it.
    pub(crate) fn advance(&mut self, socket: impl AsFd) -> io::Result<Progress> {
        loop {
            if !self.outgoing.flush(&socket)? {
                return Ok(Progress::Pending);
            }
            match &self.state {
                HandshakeStep::Authorizing => return Ok(Progress::Authorize(self.hello)),
                HandshakeStep::Ended(Ok(())) => return Ok(Progress::Done),
                HandshakeStep::Ended(Err(refusal)) => return Ok(Progress::Refused(refusal.clone())),
                HandshakeStep::Greeting | HandshakeStep::Hello | HandshakeStep::Verdict => {}
            }
            let complete = self.incoming.fill(&socket)?;
            let outcome = match self.state {
                HandshakeStep::Greeting => self.check_greeting(),
                _ => Ok(()),
            };
            match outcome {
                Err(refusal) => self.state = HandshakeStep::Ended(Err(refusal)),
                Ok(()) if complete => self.handle_message(),
                Ok(()) => return Ok(Progress::Pending),
            }
        }
    }

    /// Answers the hello.
    pub(crate) fn answer(&mut self, verdict: Result<(), Refusal>) {
        let encoded = Verdict(verdict.clone()).encode();
        self.transcript.extend_from_slice(&encoded);
        self.outgoing.put(&encoded, &self.proof());
        self.state = HandshakeStep::Ended(verdict);
    }

    /// Returns the checks of all later bytes, once the handshake is complete.
    pub(crate) fn protection(&self) -> Option<Protection> {
        match &self.config.secret {
            Some(secret) => Some(Protection::authenticated(secret, self.role, &self.transcript)),
            None => self.checksums.then(Protection::checksums),
        }
    }

    /// Whether the other side has sent a greeting of this protocol.
    pub(crate) const fn has_greeted(&self) -> bool {
        !matches!(self.state, HandshakeStep::Greeting)
    }

    /// Whether the handshake waits until it can send, not for bytes to read.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Checks the start of a greeting. A dialer of another version is also greeted, so that it can
    /// report both versions.
    fn check_greeting(&mut self) -> Result<(), Refusal> {
        let outcome = Greeting::check_prefix(self.incoming.bytes());
        if matches!(outcome, Err(Refusal::Version { .. })) && self.role == Role::Acceptor {
            self.send_greeting();
        }
        outcome
    }

    fn send_greeting(&mut self) {
        let greeting = self.ours.encode();
        self.transcript.extend_from_slice(&greeting);
        self.outgoing.put(&greeting, &[]);
    }

    /// Handles a complete message.
    fn handle_message(&mut self) {
        let outcome = match self.state {
            HandshakeStep::Greeting => self.handle_greeting(),
            HandshakeStep::Hello => self.handle_hello(),
            _ => self.handle_verdict(),
        };
        if let Err(refusal) = outcome {
            self.state = HandshakeStep::Ended(Err(refusal));
        }
    }

    fn handle_greeting(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message().ok_or(Refusal::NotAPeer)?;
        let theirs = Greeting::decode(&bytes, self.role.other()).map_err(|_| Refusal::NotAPeer)?;
        self.transcript.extend_from_slice(&bytes);
        if self.role == Role::Acceptor {
            self.send_greeting();
        }
        self.checksums |= theirs.checksums;
        if theirs.authenticates != self.ours.authenticates {
            return Err(Refusal::Authentication);
        }
        if self.role == Role::Dialer {
            let hello = self.hello.encode();
            self.transcript.extend_from_slice(&hello);
            self.outgoing.put(&hello, &self.proof());
            self.await_bytes(HandshakeStep::Verdict, VERDICT_BYTES + PROOF_BYTES);
        } else {
            self.await_bytes(HandshakeStep::Hello, HELLO_BYTES + PROOF_BYTES);
        }
        Ok(())
    }

    /// Handles a hello. A hello with a wrong proof is refused unread.
    fn handle_hello(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message::<HELLO_BYTES>().ok_or(Refusal::NotAPeer)?;
        self.transcript.extend_from_slice(&bytes);
        if !self.verify(self.incoming.after(HELLO_BYTES)) {
            let refusal = self.wrong_proof();
            self.outgoing.put(&Verdict(Err(refusal.clone())).encode(), &[0; PROOF_BYTES]);
            return Err(refusal);
        }
        match Hello::decode(&bytes) {
            Ok(hello) => {
                self.hello = hello;
                self.state = HandshakeStep::Authorizing;
            }
            Err(_) => self.answer(Err(Refusal::NotAPeer)),
        }
        Ok(())
    }

    /// Handles a verdict. If its proof is wrong, its code is ignored.
    fn handle_verdict(&mut self) -> Result<(), Refusal> {
        let bytes = *self.incoming.message::<VERDICT_BYTES>().ok_or(Refusal::NotAPeer)?;
        self.transcript.extend_from_slice(&bytes);
        if !self.verify(self.incoming.after(VERDICT_BYTES)) {
            return Err(self.wrong_proof());
        }
        self.state = HandshakeStep::Ended(Verdict::decode(&bytes, &self.hello).0);
        Ok(())
    }

    fn await_bytes(&mut self, state: HandshakeStep, bytes: usize) {
        self.state = state;
        self.incoming = Incoming::new(bytes);
    }

    /// The proof of this side over the transcript.
    fn proof(&self) -> [u8; PROOF_BYTES] {
        match &self.config.secret {
            Some(secret) => secret.prove(self.role.label(), &self.transcript),
            None if self.checksums => checksum(self.role, &self.transcript),
            None => [0; PROOF_BYTES],
        }
    }

    /// Whether this is the proof of the other side over the transcript.
    fn verify(&self, proof: &[u8]) -> bool {
        let other = self.role.other();
        match &self.config.secret {
            Some(secret) => secret.verifies(other.label(), &self.transcript, proof),
            None if self.checksums => checksum(other, &self.transcript) == proof,
            None => true,
        }
    }

    /// The refusal of a wrong proof.
    const fn wrong_proof(&self) -> Refusal {
        match self.config.secret {
            Some(_) => Refusal::Authentication,
            None => Refusal::Corrupted,
        }
    }
}

/// Returns the proof of a side that has no secret: a checksum, and zeros.
fn checksum(role: Role, transcript: &[u8]) -> [u8; PROOF_BYTES] {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(role.label()), transcript);
    let mut proof = [0; PROOF_BYTES];
    proof[..8].copy_from_slice(&wire::words::<1, 8>([checksum.into()]));
    proof
}

#[cfg(test)]
mod tests;

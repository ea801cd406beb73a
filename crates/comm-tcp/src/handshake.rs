//! The handshake of two processes at the start of a connection.
//!
//! It has four messages of fixed length: the greeting of the dialer, the greeting of the acceptor,
//! the hello, which is the request of the dialer, and the verdict, which is the reply of the
//! acceptor. The hello and the verdict each carry a proof, over the transcript so far, that the
//! sender knows the shared secret, or else a checksum. Both also agree on the protection of later
//! bytes. The store and the channels use the same handshake.
//!
//! With TLS, the TLS handshake comes first, and the four messages are sent inside. The transcript
//! then begins with a value that identifies the connection in TLS, so that nobody between the two
//! sides can have one connection with each and pass on the proofs. A side that requires TLS and one
//! that does not use it recognise each other's first byte. Then the acceptor sends its greeting as
//! it is, and both refuse the connection.
//!
//! A [`Handshake`] never blocks and never reads beyond its last message, so that later bytes stay
//! in the socket, or in the connection in TLS.

mod layer;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;

use comm_core::{Refusal, wire};
use comm_rendezvous::random_bytes;
use socket2::Socket;

use self::layer::{HandshakeLayer, Opening};
use crate::hello::{GREETING_BYTES, Greeting, HELLO_BYTES, Hello, Role, VERDICT_BYTES, Verdict};
use crate::message::{Incoming, Outgoing};
use crate::protection::{Established, Protection, ProtectionConfig};
use crate::secret::PROOF_BYTES;
use crate::tls::{self, TlsSession};

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
    /// All messages so far, without the proofs. In TLS, it begins with the connection's binding.
    transcript: Vec<u8>,
    layer: HandshakeLayer,
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
        if matches!(handshake.layer, HandshakeLayer::Clear) {
            handshake.send_greeting();
        }
        Ok(handshake)
    }

    /// Begins the handshake of the side that accepted.
    pub(crate) fn accept(config: ProtectionConfig) -> io::Result<Self> {
        Self::new(Role::Acceptor, config, Hello::store(0))
    }

    fn new(role: Role, config: ProtectionConfig, hello: Hello) -> io::Result<Self> {
        let (nonce, checksums) = (random_bytes()?, config.checksums);
        let (authenticates, tls) = (config.secret.is_some(), config.tls.is_some());
        let binding_bytes = if tls { tls::BINDING_BYTES } else { 0 };
        Ok(Self {
            role,
            layer: HandshakeLayer::new(role, config.tls.as_ref())?,
            ours: Greeting { authenticates, checksums, tls, role, nonce },
            config,
            checksums,
            hello,
            state: HandshakeStep::Greeting,
            incoming: Incoming::new(GREETING_BYTES),
            outgoing: Outgoing::default(),
            transcript: Vec::with_capacity(binding_bytes + 2 * GREETING_BYTES + HELLO_BYTES + VERDICT_BYTES),
        })
    }

    /// Continues until the socket would block, or the handshake ends or waits for
    /// [`Handshake::answer`].
    ///
    /// # Errors
    /// The error of the socket; [`io::ErrorKind::UnexpectedEof`] if the other side closed it.
    pub(crate) fn advance(&mut self, socket: impl AsFd) -> io::Result<Progress> {
        let refusal = match self.open_layer(&socket) {
            Ok(Progress::Refused(refusal)) => refusal,
            Err(error) => match self.layer.failure(&socket) {
                Some(reason) => Refusal::TlsFailed { reason },
                None => return Err(error),
            },
            outcome => return outcome,
        };
        if matches!(refusal, Refusal::TlsRequired { .. } | Refusal::TlsFailed { .. }) {
            layer::discard(&socket);
        }
        self.state = HandshakeStep::Ended(Err(refusal.clone()));
        Ok(Progress::Refused(refusal))
    }

    /// Continues the TLS handshake, and then exchanges messages.
    fn open_layer(&mut self, socket: &impl AsFd) -> io::Result<Progress> {
        match self.layer.open(self.config.tls.as_ref(), socket)? {
            Opening::Pending => return Ok(Progress::Pending),
            Opening::Failed(reason) => return Ok(Progress::Refused(Refusal::TlsFailed { reason })),
            Opening::Opened(binding) => {
                self.transcript.extend_from_slice(&binding);
                if self.role == Role::Dialer {
                    self.send_greeting();
                }
            }
            Opening::Open => {}
        }
        self.exchange_messages(socket)
    }

    fn exchange_messages(&mut self, socket: &impl AsFd) -> io::Result<Progress> {
        loop {
            if !self.outgoing.flush(&mut self.layer.stream(socket))? {
                return Ok(Progress::Pending);
            }
            match &self.state {
                HandshakeStep::Authorizing => return Ok(Progress::Authorize(self.hello)),
                HandshakeStep::Ended(Ok(())) => return Ok(Progress::Done),
                HandshakeStep::Ended(Err(refusal)) => return Ok(Progress::Refused(refusal.clone())),
                HandshakeStep::Greeting | HandshakeStep::Hello | HandshakeStep::Verdict => {}
            }
            let complete = self.incoming.fill(&mut self.layer.stream(socket))?;
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

    /// Returns the connection, once the handshake is complete.
    pub(crate) fn into_established(self, socket: Socket) -> Established {
        let protection = self.protection();
        Established { socket, protection, tls: self.layer.into_session() }
    }

    /// Returns the checks of all later bytes, once the handshake is complete, unless TLS checks
    /// them.
    pub(crate) fn protection(&self) -> Option<Protection> {
        match &self.config.secret {
            _ if self.layer.session().is_some() => None,
            Some(secret) => Some(Protection::authenticated(secret, self.role, &self.transcript)),
            None => self.checksums.then(Protection::checksums),
        }
    }

    /// Whether the other side has sent a greeting of this protocol, or begun a TLS handshake.
    pub(crate) fn has_greeted(&self) -> bool {
        let in_tls = self.layer.session().is_some_and(TlsSession::has_received_record);
        in_tls || !matches!(self.state, HandshakeStep::Greeting)
    }

    /// Whether the handshake waits until it can send, not for bytes to read.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty() || self.layer.session().is_some_and(TlsSession::holds_bytes)
    }

    /// Checks the start of a greeting. A dialer of another version is also greeted, so that it can
    /// report both versions, and so is one that uses TLS.
    fn check_greeting(&mut self) -> Result<(), Refusal> {
        let first = self.incoming.bytes().first();
        let outcome = match (self.role, first) {
            (Role::Acceptor, Some(&tls::FIRST_BYTE)) => Err(Refusal::TlsRequired { here: false }),
            _ => Greeting::check_prefix(self.incoming.bytes()),
        };
        let is_answered = matches!(outcome, Err(Refusal::Version { .. } | Refusal::TlsRequired { .. }));
        if is_answered && self.role == Role::Acceptor {
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
        if [theirs.tls, self.layer.session().is_some()] != [self.ours.tls; 2] {
            return Err(Refusal::TlsRequired { here: self.ours.tls });
        }
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

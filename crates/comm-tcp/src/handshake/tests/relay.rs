//! A relay between two sides of a handshake, which alters, drops, reflects and replays messages.

use comm_sim::hostile::Input;

use super::*;

/// The most memory of a side besides the buffers of its socket.
const MEMORY_MAX: usize = 1024;
/// The most memory that one step may allocate in addition, for the computation of a proof.
const ALLOCATED_MAX: u64 = 1024;
/// A TLS handshake needs more memory until it ends.
const TLS_MEMORY_MAX: usize = 40 * 1024;
const TLS_ALLOCATED_MAX: u64 = 48 * 1024;
const ROUNDS: usize = 8;
/// The messages of a handshake, with TLS's.
const MESSAGES_MAX: usize = 6;

/// The lengths of the messages that each role receives, up to the end of its handshake.
const RECEIVED: [usize; 2] =
    [GREETING_BYTES + VERDICT_BYTES + PROOF_BYTES, GREETING_BYTES + HELLO_BYTES + PROOF_BYTES];

/// The protection that a side requires.
#[derive(Debug, Clone, Copy)]
struct SideConfig {
    secret: Option<&'static str>,
    checksums: bool,
    tls: bool,
}

impl SideConfig {
    fn draw(input: &mut Input) -> Self {
        let secret = [Some("sesame"), Some("sesame"), Some("simsim"), None][input.below(4)];
        Self { secret, checksums: input.one_in(2), tls: false }
    }

    /// Draws the configuration of a side that may use TLS, for which it needs a secret.
    #[cfg(feature = "tls")]
    fn draw_with_tls(input: &mut Input) -> Self {
        let Self { secret, checksums, .. } = Self::draw(input);
        Self { secret: secret.or(Some("sesame")), checksums, tls: !input.one_in(4) }
    }

    fn protection(self) -> ProtectionConfig {
        let tls = self.tls.then(shared_tls).flatten();
        ProtectionConfig { checksums: self.checksums, tls, ..with_secret(self.secret) }
    }
}

/// Returns the settings of TLS, which the relay has as well.
#[cfg(feature = "tls")]
fn shared_tls() -> Option<tls::Tls> {
    static TLS: std::sync::LazyLock<tls::Tls> = std::sync::LazyLock::new(|| tls::Tls::with_secret().unwrap());
    Some(TLS.clone())
}

#[cfg(not(feature = "tls"))]
const fn shared_tls() -> Option<tls::Tls> {
    None
}

/// One side, and the relay's end of its socket.
struct Side {
    handshake: Handshake,
    config: SideConfig,
    socket: UnixStream,
    wire: UnixStream,
    sent: Vec<u8>,
    received: Vec<u8>,
    /// `None` after an error.
    progress: Option<Progress>,
    /// Whether it has taken the relay for an authenticated peer.
    trusts: bool,
    /// The memory on the heap that it holds.
    held: i64,
}

impl Side {
    fn new(role: Role, config: SideConfig) -> Self {
        let (socket, wire) = UnixStream::pair().unwrap();
        wire.set_nonblocking(true).unwrap();
        let own = config.protection();
        let mut handshake = None;
        let memory = allocation_counter::measure(|| {
            handshake = Some(match role {
                Role::Dialer => Handshake::connect(own, Hello::store(7)),
                Role::Acceptor => Handshake::accept(own),
            });
        });
        let handshake = handshake.unwrap().unwrap();
        let (sent, received, progress) = (Vec::new(), Vec::new(), Some(Progress::Pending));
        let (trusts, held) = (false, memory.bytes_current);
        Self { handshake, config, socket, wire, sent, received, progress, trusts, held }
    }

    /// The most memory of this side besides the buffers of its socket, and the most that one step
    /// may allocate in addition.
    const fn memory_max(&self) -> (usize, u64) {
        if self.config.tls { (TLS_MEMORY_MAX, TLS_ALLOCATED_MAX) } else { (MEMORY_MAX, ALLOCATED_MAX) }
    }

    /// Continues until it waits for bytes, and returns the bytes that it has sent.
    fn advance(&mut self) -> Vec<u8> {
        let mut progress = None;
        let memory = allocation_counter::measure(|| progress = self.handshake.advance(&self.socket).ok());
        let (held_max, allocated_max) = self.memory_max();
        assert!(memory.bytes_max < allocated_max, "{} bytes were allocated", memory.bytes_max);
        self.held += memory.bytes_current;
        if let Some(Progress::Refused(_)) = self.progress {
            assert_eq!(progress, self.progress, "a refusal is final");
        }
        if let Some(Progress::Authorize(hello)) = progress {
            self.trusts = true;
            self.handshake.answer(if hello.job == 7 { Ok(()) } else { Err(Refusal::Job) });
            progress = self.handshake.advance(&self.socket).ok();
        }
        self.trusts |= progress == Some(Progress::Done);
        self.progress = progress;
        let held = size_of::<Handshake>() + usize::try_from(self.held).unwrap_or(0);
        assert!(held < held_max, "a pending connection holds {held} bytes");
        let mut bytes = [0; 4096];
        let sent = self.wire.read(&mut bytes).map_or(&[][..], |len| &bytes[..len]);
        self.sent.extend_from_slice(sent);
        sent.to_vec()
    }

    fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        // It may have read less than all, and have ended.
        let _ = self.wire.write(bytes);
        self.received.extend_from_slice(bytes);
        self.advance()
    }
}

/// Returns the messages of a complete handshake between these sides.
fn recorded(configs: [SideConfig; 2]) -> Vec<Vec<u8>> {
    let mut sides = [Side::new(Role::Dialer, configs[0]), Side::new(Role::Acceptor, configs[1])];
    let mut messages = vec![sides[0].advance()];
    for number in 0..MESSAGES_MAX {
        let message = messages[number].clone();
        messages.push(sides[(number + 1) % 2].receive(&message));
    }
    messages
}

/// Draws the bytes that the relay delivers in place of a message, given all that it has seen.
fn deliver(input: &mut Input, message: &[u8], seen: &[Vec<u8>]) -> Vec<u8> {
    match input.below(16) {
        9 | 10 if !message.is_empty() => input.alter(message),
        11 => input.pick(seen).clone(),
        12 => [message, &input.pick(seen)[..]].concat(),
        13 => Vec::new(),
        14 => {
            let other = input.pick(seen);
            let cut = input.below(message.len().min(other.len()) + 1);
            [&message[..cut], &other[cut..]].concat()
        }
        15 => [&input.pick(seen)[..], message].concat(),
        _ => message.to_vec(),
    }
}

fn attack(input: &mut Input, configs: [SideConfig; 2]) {
    let mut seen = recorded(configs);
    let mut sides = [Side::new(Role::Dialer, configs[0]), Side::new(Role::Acceptor, configs[1])];
    let (mut underway, mut is_altered) = ([sides[0].advance(), Vec::new()], false);
    for round in 0..ROUNDS {
        let from = round % 2;
        let message = std::mem::take(&mut underway[from]);
        seen.push(message.clone());
        let delivered = deliver(input, &message, &seen);
        is_altered |= delivered != message;
        for piece in input.cut(&delivered) {
            let sent = sides[1 - from].receive(piece);
            underway[1 - from].extend(sent);
        }
    }
    for at in 0..2 {
        sides[at].wire.shutdown(std::net::Shutdown::Write).unwrap();
        sides[at].advance();
        let (side, other) = (&sides[at], &sides[1 - at]);
        assert_ne!(side.progress, Some(Progress::Pending), "the end of the connection is ignored");
        let is_alike = side.config.secret == other.config.secret && side.config.tls == other.config.tls;
        let may_connect = is_alike && !is_altered;
        assert!(!may_connect || side.progress == Some(Progress::Done), "{:?}", side.progress);
        if side.trusts && side.config.tls {
            // TLS ignores some bytes that nobody uses, so that altered ones may pass.
            assert!(is_alike, "a side without the secret or TLS is trusted");
            let binding = |side: &Side| side.handshake.transcript[..tls::BINDING_BYTES].to_vec();
            assert_eq!(binding(side), binding(other), "somebody is in between");
        } else if side.trusts {
            let (received, rest) = side.received.split_at(RECEIVED[at]);
            let mut unread = Vec::new();
            (&side.socket).read_to_end(&mut unread).unwrap();
            assert_eq!(unread, rest, "later bytes belong to the connection");
            if side.config.secret.is_some() || side.config.checksums {
                assert_eq!(Some(received), other.sent.get(..RECEIVED[at]), "it was altered on the way");
                assert_eq!(side.config.secret, other.config.secret);
            }
        }
    }
}

comm_sim::hostile_input!(a_relay_is_never_taken_for_a_peer: 4000, |input| {
    let configs = [SideConfig::draw(input), SideConfig::draw(input)];
    attack(input, configs);
});

#[cfg(feature = "tls")]
comm_sim::hostile_input!(a_relay_is_never_taken_for_a_peer_in_tls: 600, |input| {
    let configs = [SideConfig::draw_with_tls(input), SideConfig::draw_with_tls(input)];
    attack(input, configs);
});

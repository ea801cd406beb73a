//! A relay between two sides of a handshake, which alters, drops, reflects and replays messages.

use comm_sim::hostile::Input;

use super::*;

/// The most memory of a side besides the buffers of its socket.
const MEMORY_MAX: usize = 1024;
/// The most memory that one step may allocate in addition, for the computation of a proof.
const ALLOCATED_MAX: u64 = 1024;
const ROUNDS: usize = 8;

/// The lengths of the messages that each role receives, up to the end of its handshake.
const RECEIVED: [usize; 2] =
    [GREETING_BYTES + VERDICT_BYTES + PROOF_BYTES, GREETING_BYTES + HELLO_BYTES + PROOF_BYTES];

/// The protection that a side requires.
#[derive(Debug, Clone, Copy)]
struct SideConfig {
    secret: Option<&'static str>,
    checksums: bool,
}

impl SideConfig {
    fn draw(input: &mut Input) -> Self {
        let secret = [Some("sesame"), Some("sesame"), Some("simsim"), None][input.below(4)];
        Self { secret, checksums: input.one_in(2) }
    }
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
}

impl Side {
    fn new(role: Role, config: SideConfig) -> Self {
        let (socket, wire) = UnixStream::pair().unwrap();
        wire.set_nonblocking(true).unwrap();
        let own = ProtectionConfig { checksums: config.checksums, ..with_secret(config.secret) };
        let handshake = match role {
            Role::Dialer => Handshake::connect(own, Hello::store(7)),
            Role::Acceptor => Handshake::accept(own),
        };
        let (sent, received, progress) = (Vec::new(), Vec::new(), Some(Progress::Pending));
        Self { handshake: handshake.unwrap(), config, socket, wire, sent, received, progress, trusts: false }
    }

    /// Continues until it waits for bytes, and returns what it has sent.
    fn advance(&mut self) -> Vec<u8> {
        let mut progress = None;
        let memory = allocation_counter::measure(|| progress = self.handshake.advance(&self.socket).ok());
        assert!(memory.bytes_max < ALLOCATED_MAX, "{} bytes were allocated", memory.bytes_max);
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
        let held = size_of::<Handshake>() + self.handshake.transcript.capacity();
        assert!(held < MEMORY_MAX, "a pending connection holds {held} bytes");
        let mut bytes = [0; 512];
        let sent = self.wire.read(&mut bytes).map_or(&[][..], |len| &bytes[..len]);
        self.sent.extend_from_slice(sent);
        sent.to_vec()
    }

    fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.wire.write_all(bytes).unwrap();
        self.received.extend_from_slice(bytes);
        self.advance()
    }
}

/// Returns the messages of a complete handshake between these sides.
fn recorded(configs: [SideConfig; 2]) -> Vec<Vec<u8>> {
    let mut sides = [Side::new(Role::Dialer, configs[0]), Side::new(Role::Acceptor, configs[1])];
    let mut messages = vec![sides[0].advance()];
    for number in 0..4 {
        let message = messages[number].clone();
        messages.push(sides[(number + 1) % 2].receive(&message));
    }
    messages
}

/// Draws what the relay delivers in place of a message, given all that it has seen.
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

comm_sim::hostile_input!(a_relay_is_never_taken_for_a_peer: 4000, |input| {
    let configs = [SideConfig::draw(input), SideConfig::draw(input)];
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
        let may_connect = side.config.secret == other.config.secret && !is_altered;
        assert!(!may_connect || side.progress == Some(Progress::Done), "{:?}", side.progress);
        if side.trusts {
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
});

//! The encoding of the messages of the handshake, which `docs/wire-tcp.md` specifies.

use comm_core::wire::{self, Reader, WireError, Writer};
use comm_core::{ChannelId, ChannelKind, GroupId, Refusal};

use crate::secret::PROOF_BYTES;

/// The first bytes on every connection. The first is not ASCII, so that no text protocol begins
/// like this.
pub(crate) const MAGIC: [u8; 8] = *b"\x93comm\r\n\x1a";
/// The version of all that this crate sends on a connection.
pub(crate) const VERSION: u16 = 5;

pub(crate) const GREETING_BYTES: usize = 48;
pub(crate) const HELLO_BYTES: usize = 48;
pub(crate) const VERDICT_BYTES: usize = 16;
/// The longest message together with its proof.
pub(crate) const MESSAGE_BYTES_MAX: usize = HELLO_BYTES + PROOF_BYTES;

/// The side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    Dialer = 1,
    Acceptor = 2,
}

impl Role {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }

    /// Returns a label that makes proofs of the two sides differ.
    pub(crate) const fn label(self) -> &'static [u8] {
        match self {
            Self::Dialer => b"comm-tcp dialer\0",
            Self::Acceptor => b"comm-tcp acceptor\0",
        }
    }

    /// Returns the label of the key of the frames that this side sends.
    pub(crate) const fn key_label(self) -> &'static [u8] {
        match self {
            Self::Dialer => b"comm-tcp dialer key\0",
            Self::Acceptor => b"comm-tcp acceptor key\0",
        }
    }
}

/// The first message of a side: the protocol, and a number that is used only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) authenticates: bool,
    /// Whether this side requires checksums.
    pub(crate) checksums: bool,
    /// Whether this side uses TLS.
    pub(crate) tls: bool,
    pub(crate) role: Role,
    pub(crate) nonce: [u8; 32],
}

impl Greeting {
    pub(crate) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut to = Writer::new();
        to.put(MAGIC).put(VERSION).put([u8::from(self.authenticates), self.role as u8]);
        to.put([u8::from(self.checksums), u8::from(self.tls), 0, 0]).put(self.nonce);
        to.into_array()
    }

    /// Returns an error as soon as the first bytes of a greeting show that the sender is not a peer
    /// or speaks another version. Only these ten bytes are the same in every version.
    pub(crate) fn check_prefix(bytes: &[u8]) -> Result<(), Refusal> {
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Refusal::NotAPeer);
        }
        match Reader::new(&bytes[magic..]).get() {
            Ok(VERSION) | Err(_) => Ok(()),
            Ok(theirs) => Err(Refusal::Version { ours: VERSION, theirs }),
        }
    }

    /// Reads a greeting whose prefix was checked.
    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES], role: Role) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            r.take(MAGIC.len() + size_of_val(&VERSION))?;
            let authenticates = r.flag("flag of authentication")?;
            r.code("role of the peer", |code| (code == role as u8).then_some(()))?;
            let checksums = r.flag("flag of checksums")?;
            let tls = r.flag("flag of TLS")?;
            r.take(2)?;
            Ok(Self { authenticates, checksums, tls, role, nonce: r.get()? })
        })
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests to a store.
    Store,
    /// The bytes of one rank on a channel.
    Channel(ChannelId),
}

/// The dialer, the expected acceptor and the purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    pub(crate) job: u64,
    /// The rank that dials, zero for a store.
    pub(crate) rank: u32,
    /// The rank that is dialed, zero for a store.
    pub(crate) to: u32,
    /// The size of the world, zero for a store.
    pub(crate) world_size: u32,
    /// The process that dials, which distinguishes two processes with the same rank.
    pub(crate) process: u64,
    /// The process that is dialed, which distinguishes it from a later one on the same port.
    pub(crate) to_process: u64,
    /// Zero for a store and for the first socket of a channel, 255 if the dialer asks for that one,
    /// and otherwise the number of a socket that the dialer adds to its stream.
    pub(crate) socket: u8,
}

impl Hello {
    const STORE: u8 = 1;
    const CHANNEL: u8 = 2;

    /// Returns the hello of a client of a store.
    pub(crate) const fn store(job: u64) -> Self {
        Self {
            purpose: Purpose::Store,
            job,
            rank: 0,
            to: 0,
            world_size: 0,
            process: 0,
            to_process: 0,
            socket: 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let (kind, channel_kind, group) = match self.purpose {
            Purpose::Store => (Self::STORE, 0, 0),
            Purpose::Channel(channel) => (Self::CHANNEL, channel.kind as u8, channel.group.0),
        };
        let mut to = Writer::new();
        to.put([kind, channel_kind, self.socket, 0]).put(self.rank).put(self.to).put(self.world_size);
        to.put(self.job).put(group).put(self.process).put(self.to_process);
        to.into_array()
    }

    /// Reads a hello. An unknown purpose is an error.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let [kind, channel_kind, socket, _reserved] = r.get()?;
            let (rank, to, world_size, job) = (r.get()?, r.get()?, r.get()?, r.get()?);
            let group = GroupId(r.get()?);
            let purpose = match (kind, ChannelKind::from_code(channel_kind)) {
                (Self::STORE, _) => Purpose::Store,
                (Self::CHANNEL, Some(kind)) => Purpose::Channel(ChannelId { group, kind }),
                _ => return Err(WireError::Unknown { what: "purpose", value: kind.into() }),
            };
            let (process, to_process) = (r.get()?, r.get()?);
            Ok(Self { purpose, job, rank, to, world_size, process, to_process, socket })
        })
    }
}

/// The acceptor's answer to a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict(pub(crate) Result<(), Refusal>);

impl Verdict {
    pub(crate) fn encode(&self) -> [u8; VERDICT_BYTES] {
        let (code, detail) = match &self.0 {
            Ok(()) => (0, 0),
            Err(Refusal::Version { ours, .. }) => (2, u64::from(*ours)),
            Err(Refusal::Job) => (3, 0),
            Err(Refusal::WorldSize { ours, .. }) => (4, *ours as u64),
            Err(Refusal::DuplicateRank { rank }) => (5, *rank as u64),
            Err(Refusal::Authentication) => (6, 0),
            Err(Refusal::StoreUnavailable { errno }) => (7, u64::from(errno.cast_unsigned())),
            Err(Refusal::Corrupted) => (8, 0),
            Err(_) => (1, 0),
        };
        wire::words([code, detail])
    }

    /// Reads the verdict on `hello`, from the point of view of the dialer.
    pub(crate) fn decode(bytes: &[u8; VERDICT_BYTES], hello: &Hello) -> Self {
        let [code, detail] = wire::read_words(bytes);
        Self(match code as u8 {
            0 => Ok(()),
            2 => Err(Refusal::Version { ours: VERSION, theirs: detail as u16 }),
            3 => Err(Refusal::Job),
            4 => Err(Refusal::WorldSize { ours: hello.world_size as usize, theirs: detail as usize }),
            5 => Err(Refusal::DuplicateRank { rank: detail as usize }),
            6 => Err(Refusal::Authentication),
            7 => Err(Refusal::StoreUnavailable { errno: detail as i32 }),
            8 => Err(Refusal::Corrupted),
            _ => Err(Refusal::NotAPeer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        purpose: Purpose::Channel(ChannelId { group: GroupId(0x0a0b), kind: ChannelKind::PointToPoint }),
        job: 0x0102,
        rank: 3,
        to: 2,
        world_size: 5,
        process: 0x1111,
        to_process: 0x2222,
        socket: 1,
    };

    comm_sim::hostile_bytes!(greetings_are_read_as_they_were_written:
    [[false; 3], [true, false, false], [false, true, false], [true, false, true]].map(|[authenticates, checksums, tls]| {
        Greeting { authenticates, checksums, tls, role: Role::Dialer, nonce: [7; 32] }
    }),
    |greeting| greeting.encode().to_vec(), |bytes| {
        Greeting::check_prefix(bytes).ok()?;
        Greeting::decode(bytes.try_into().ok()?, Role::Dialer).ok()
    });

    comm_sim::hostile_bytes!(hellos_are_read_as_they_were_written: [HELLO, Hello::store(9)],
        |hello| hello.encode().to_vec(), |bytes| Hello::decode(bytes.try_into().ok()?).ok());

    #[test]
    fn a_greeting_of_the_own_role_is_refused() {
        let greeting = Greeting {
            authenticates: true,
            checksums: false,
            tls: false,
            role: Role::Dialer,
            nonce: [7; 32],
        };
        assert!(Greeting::decode(&greeting.encode(), Role::Acceptor).is_err());
    }

    #[test]
    fn verdicts_are_read_from_the_other_side() {
        let refusals = [
            Refusal::NotAPeer,
            Refusal::Job,
            Refusal::DuplicateRank { rank: 3 },
            Refusal::Authentication,
            Refusal::Corrupted,
            Refusal::StoreUnavailable { errno: 11 },
        ];
        for verdict in refusals.into_iter().map(|r| Verdict(Err(r))).chain([Verdict(Ok(()))]) {
            assert_eq!(Verdict::decode(&verdict.encode(), &HELLO), verdict);
        }
        let sizes = Verdict(Err(Refusal::WorldSize { ours: 8, theirs: 5 }));
        let seen = Verdict(Err(Refusal::WorldSize { ours: 5, theirs: 8 }));
        assert_eq!(Verdict::decode(&sizes.encode(), &HELLO), seen);
    }

    /// `docs/wire-tcp.md` documents these bytes. A change here needs a new version.
    #[test]
    fn messages_are_pinned_to_the_byte() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let greeting = Greeting {
            authenticates: true,
            checksums: true,
            tls: false,
            role: Role::Acceptor,
            nonce: [0xee; 32],
        };
        let prefix = "93636f6d6d0d0a1a0500010201000000";
        assert_eq!(hex(&greeting.encode()), format!("{prefix}{}", "ee".repeat(32)));
        let words = ["02020100", "03000000", "02000000", "05000000", "0201000000000000"];
        let rest = ["0b0a000000000000", "1111000000000000", "2222000000000000"];
        assert_eq!(hex(&HELLO.encode()), words.concat() + &rest.concat());
        let verdict = Verdict(Err(Refusal::WorldSize { ours: 8, theirs: 5 }));
        assert_eq!(hex(&verdict.encode()), "04000000000000000800000000000000");
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_byte() {
        assert_eq!(Greeting::check_prefix(b"G"), Err(Refusal::NotAPeer));
        assert_eq!(Greeting::check_prefix(b"\x16\x03\x01"), Err(Refusal::NotAPeer));
        let greeting = Greeting {
            authenticates: false,
            checksums: false,
            tls: false,
            role: Role::Dialer,
            nonce: [0; 32],
        }
        .encode();
        for end in 0..greeting.len() {
            assert_eq!(Greeting::check_prefix(&greeting[..end]), Ok(()));
        }
        let mut newer = greeting;
        newer[8] = 9;
        assert_eq!(Greeting::check_prefix(&newer[..9]), Ok(()));
        assert_eq!(Greeting::check_prefix(&newer[..10]), Err(Refusal::Version { ours: VERSION, theirs: 9 }));
    }

    #[test]
    fn unknown_codes_are_refused() {
        let mut bytes = Hello::store(1).encode();
        bytes[0] = 3;
        assert!(Hello::decode(&bytes).is_err());
        bytes[0] = Hello::CHANNEL;
        bytes[1] = 3;
        assert!(Hello::decode(&bytes).is_err());
    }
}

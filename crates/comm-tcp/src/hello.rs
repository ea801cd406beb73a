//! The messages of the handshake, to the byte. `docs/wire-tcp.md` says the same in words.

use comm_core::{GroupId, LaneId, LaneKind, Refusal};

use crate::secret::PROOF_BYTES;

/// The first bytes on every connection. The first is no ASCII, so that no text protocol begins like this.
pub(crate) const MAGIC: [u8; 8] = *b"\x93comm\r\n\x1a";
/// The version of everything that this crate puts on a connection.
pub(crate) const VERSION: u16 = 2;

pub(crate) const GREETING_BYTES: usize = 48;
pub(crate) const HELLO_BYTES: usize = 48;
pub(crate) const VERDICT_BYTES: usize = 16;
/// The longest message together with its proof.
pub(crate) const MESSAGE_BYTES_MAX: usize = HELLO_BYTES + PROOF_BYTES;

/// Which end of a connection a side is.
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

    /// What keeps a proof of one side from being a proof of the other.
    pub(crate) const fn label(self) -> &'static [u8] {
        match self {
            Self::Dialer => b"comm-tcp dialer\0",
            Self::Acceptor => b"comm-tcp acceptor\0",
        }
    }
}

/// What a side says first: that it speaks this protocol, and a number that was never used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) authenticates: bool,
    pub(crate) role: Role,
    pub(crate) nonce: [u8; 32],
}

impl Greeting {
    pub(crate) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = u8::from(self.authenticates);
        bytes[11] = self.role as u8;
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Refuses the first bytes of a greeting as early as they show a stranger or another version. Only these ten
    /// bytes are the same in every version.
    pub(crate) fn check_prefix(bytes: &[u8]) -> Result<(), Refusal> {
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Refusal::Stranger);
        }
        match bytes.get(8..10) {
            Some(&[low, high]) => match u16::from_le_bytes([low, high]) {
                VERSION => Ok(()),
                theirs => Err(Refusal::Version { ours: VERSION, theirs }),
            },
            _ => Ok(()),
        }
    }

    /// Reads a greeting whose prefix was checked.
    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES], role: Role) -> Result<Self, Refusal> {
        let authenticates = match bytes[10] {
            0 => false,
            1 => true,
            _ => return Err(Refusal::Stranger),
        };
        if bytes[11] != role as u8 {
            return Err(Refusal::Stranger);
        }
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[16..]);
        Ok(Self { authenticates, role, nonce })
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests to a store.
    Store,
    /// One rank's bytes of a lane.
    Lane(LaneId),
}

/// Who dials, whom it means, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    pub(crate) job: u64,
    /// The rank that dials, zero for a store.
    pub(crate) rank: u32,
    /// The rank that is meant, zero for a store.
    pub(crate) to: u32,
    /// The size of the world, zero for a store.
    pub(crate) world_size: u32,
    /// The process that dials: tells two processes with one rank apart.
    pub(crate) process: u64,
    /// The process that is meant: tells it from a later one on the same port.
    pub(crate) to_process: u64,
    /// The number of this socket among those of the lane between the two, zero for a store.
    pub(crate) socket: u8,
    /// How many sockets the lane has between the two, zero for a store.
    pub(crate) sockets: u8,
}

impl Hello {
    const STORE: u8 = 1;
    const LANE: u8 = 2;

    /// A client of a store.
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
            sockets: 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let (kind, lane_kind, group) = match self.purpose {
            Purpose::Store => (Self::STORE, 0, 0),
            Purpose::Lane(lane) => (Self::LANE, lane.kind as u8, lane.group.0),
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[0] = kind;
        bytes[1] = lane_kind;
        bytes[2] = self.socket;
        bytes[3] = self.sockets;
        bytes[4..8].copy_from_slice(&self.rank.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.to.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.job.to_le_bytes());
        bytes[24..32].copy_from_slice(&group.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.process.to_le_bytes());
        bytes[40..].copy_from_slice(&self.to_process.to_le_bytes());
        bytes
    }

    /// `None` if the bytes name a purpose that does not exist.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let group = GroupId(word64(bytes, 24));
        let purpose = match bytes[0] {
            Self::STORE => Purpose::Store,
            Self::LANE => Purpose::Lane(LaneId { group, kind: lane_kind(bytes[1])? }),
            _ => return None,
        };
        Some(Self {
            purpose,
            rank: word32(bytes, 4),
            to: word32(bytes, 8),
            world_size: word32(bytes, 12),
            job: word64(bytes, 16),
            process: word64(bytes, 32),
            to_process: word64(bytes, 40),
            socket: bytes[2],
            sockets: bytes[3],
        })
    }
}

fn lane_kind(code: u8) -> Option<LaneKind> {
    [LaneKind::Control, LaneKind::Collective, LaneKind::PointToPoint]
        .into_iter()
        .find(|kind| *kind as u8 == code)
}

/// What the acceptor thinks of a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict(pub(crate) Result<(), Refusal>);

impl Verdict {
    pub(crate) fn encode(&self) -> [u8; VERDICT_BYTES] {
        let (code, detail) = match &self.0 {
            Ok(()) => (0_u8, 0),
            Err(Refusal::Version { ours, .. }) => (2, u64::from(*ours)),
            Err(Refusal::Job) => (3, 0),
            Err(Refusal::WorldSize { ours, .. }) => (4, *ours as u64),
            Err(Refusal::DuplicateRank { rank }) => (5, *rank as u64),
            Err(Refusal::Authentication) => (6, 0),
            Err(Refusal::StoreUnavailable { errno }) => (7, u64::from(errno.cast_unsigned())),
            Err(_) => (1, 0),
        };
        let mut bytes = [0; VERDICT_BYTES];
        bytes[0] = code;
        bytes[8..].copy_from_slice(&detail.to_le_bytes());
        bytes
    }

    /// Reads the verdict on `hello`, from the point of view of the side that said hello.
    pub(crate) fn decode(bytes: &[u8; VERDICT_BYTES], hello: &Hello) -> Self {
        let detail = word64(bytes, 8);
        Self(match bytes[0] {
            0 => Ok(()),
            2 => Err(Refusal::Version { ours: VERSION, theirs: detail as u16 }),
            3 => Err(Refusal::Job),
            4 => Err(Refusal::WorldSize { ours: hello.world_size as usize, theirs: detail as usize }),
            5 => Err(Refusal::DuplicateRank { rank: detail as usize }),
            6 => Err(Refusal::Authentication),
            7 => Err(Refusal::StoreUnavailable { errno: detail as i32 }),
            _ => Err(Refusal::Stranger),
        })
    }
}

/// The 32-bit number at `at`. Bytes that are not there count as zero.
fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let greeting = Greeting { authenticates: true, role: Role::Dialer, nonce: [7; 32] };
        assert_eq!(Greeting::decode(&greeting.encode(), Role::Dialer), Ok(greeting));
        assert_eq!(Greeting::decode(&greeting.encode(), Role::Acceptor), Err(Refusal::Stranger));
        let lane = LaneId { group: GroupId(0x1234_5678_9abc_def0), kind: LaneKind::PointToPoint };
        let hello = Hello {
            purpose: Purpose::Lane(lane),
            job: 2,
            rank: 3,
            to: 4,
            world_size: 5,
            process: 6,
            to_process: u64::MAX,
            socket: 2,
            sockets: 7,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&Hello::store(9).encode()), Some(Hello::store(9)));
        let refusals = [
            Refusal::Stranger,
            Refusal::Job,
            Refusal::DuplicateRank { rank: 3 },
            Refusal::Authentication,
            Refusal::StoreUnavailable { errno: 11 },
        ];
        for verdict in refusals.into_iter().map(|r| Verdict(Err(r))).chain([Verdict(Ok(()))]) {
            assert_eq!(Verdict::decode(&verdict.encode(), &hello), verdict);
        }
        let sizes = Verdict(Err(Refusal::WorldSize { ours: 8, theirs: 5 }));
        let seen = Verdict(Err(Refusal::WorldSize { ours: 5, theirs: 8 }));
        assert_eq!(Verdict::decode(&sizes.encode(), &hello), seen);
    }

    /// What `docs/wire-tcp.md` says. A change here is a change of the version.
    #[test]
    fn messages_are_pinned_to_the_byte() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let greeting = Greeting { authenticates: true, role: Role::Acceptor, nonce: [0xee; 32] };
        let prefix = "93636f6d6d0d0a1a0200010200000000";
        assert_eq!(hex(&greeting.encode()), format!("{prefix}{}", "ee".repeat(32)));
        let hello = Hello {
            purpose: Purpose::Lane(LaneId { group: GroupId(0x0a0b), kind: LaneKind::PointToPoint }),
            job: 0x0102,
            rank: 3,
            to: 2,
            world_size: 5,
            process: 0x1111,
            to_process: 0x2222,
            socket: 1,
            sockets: 4,
        };
        let words = ["02020104", "03000000", "02000000", "05000000", "0201000000000000"];
        let rest = ["0b0a000000000000", "1111000000000000", "2222000000000000"];
        assert_eq!(hex(&hello.encode()), words.concat() + &rest.concat());
        let verdict = Verdict(Err(Refusal::WorldSize { ours: 8, theirs: 5 }));
        assert_eq!(hex(&verdict.encode()), "04000000000000000800000000000000");
    }

    #[test]
    fn a_stranger_shows_in_its_first_byte() {
        assert_eq!(Greeting::check_prefix(b"G"), Err(Refusal::Stranger));
        assert_eq!(Greeting::check_prefix(b"\x16\x03\x01"), Err(Refusal::Stranger));
        let greeting = Greeting { authenticates: false, role: Role::Dialer, nonce: [0; 32] }.encode();
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
        assert_eq!(Hello::decode(&bytes), None);
        bytes[0] = Hello::LANE;
        bytes[1] = 3;
        assert_eq!(Hello::decode(&bytes), None);
    }
}

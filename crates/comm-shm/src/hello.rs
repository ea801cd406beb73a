//! What is said on a connection before memory is shared: one packet each way.

use comm_core::{GroupId, LaneId, LaneKind};

/// The first bytes of the packets of both sides: a magic and the version.
const MAGIC: [u8; 8] = *b"\x93cshm\r\n\x04";
/// The size of a hello in bytes.
pub(crate) const HELLO_BYTES: usize = 72;
/// What the acceptor answers. The dialer may use the segment from then on.
pub(crate) const WELCOME: [u8; 8] = MAGIC;

/// Which lane a connection is for. Ranks that list different members for a lane of one name mean
/// different lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaneKey {
    pub(crate) lane: LaneId,
    members: u64,
}

impl LaneKey {
    pub(crate) fn new(lane: LaneId, members: &[usize]) -> Self {
        let mix = |hash: u64, word: u64| {
            let mut z = (hash.rotate_left(23) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let words = members.iter().map(|rank| *rank as u64).chain([members.len() as u64]);
        Self { lane, members: words.fold(0, mix) }
    }
}

/// What the dialer says. The memory comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) key: LaneKey,
    /// The rank of the dialer in the world.
    pub(crate) rank: u32,
    /// What only a process knows that can read the dialer's record in the store.
    pub(crate) token: u128,
    /// The same of the acceptor.
    pub(crate) to_token: u128,
    /// The capacity of a ring in bytes.
    pub(crate) capacity: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.key.lane.kind as u8;
        bytes[12..16].copy_from_slice(&self.rank.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.lane.group.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.key.members.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.token.to_le_bytes());
        bytes[56..72].copy_from_slice(&self.to_token.to_le_bytes());
        bytes
    }

    /// `None` if it is no hello of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != MAGIC {
            return None;
        }
        let kind = match bytes[8] {
            0 => LaneKind::Control,
            1 => LaneKind::Collective,
            2 => LaneKind::PointToPoint,
            _ => return None,
        };
        let group = GroupId(u64::from_le_bytes(field(bytes, 16)));
        Some(Self {
            key: LaneKey { lane: LaneId { group, kind }, members: u64::from_le_bytes(field(bytes, 24)) },
            rank: u32::from_le_bytes(field(bytes, 12)),
            token: u128::from_le_bytes(field(bytes, 40)),
            to_token: u128::from_le_bytes(field(bytes, 56)),
            capacity: u64::from_le_bytes(field(bytes, 32)),
        })
    }
}

/// `N` bytes from a place that lies within.
fn field<const N: usize>(bytes: &[u8; HELLO_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_hello_are_those_of_the_format() {
        let lane = LaneId { group: GroupId(0x0807_0605_0403_0201), kind: LaneKind::PointToPoint };
        let key = LaneKey { lane, members: 0x1817_1615_1413_1211 };
        let hello = Hello { key, rank: 7, token: 5, to_token: 6, capacity: 1 << 18 };
        let mut expected = b"\x93cshm\r\n\x04\x02\0\0\0\x07\0\0\0".to_vec();
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expected.extend([0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        expected.extend([0, 0, 4, 0, 0, 0, 0, 0]);
        expected.extend(5_u128.to_le_bytes());
        expected.extend(6_u128.to_le_bytes());
        assert_eq!(hello.encode()[..], expected);
        assert_eq!(Hello::decode(&expected), Some(hello));
        for at in 0..9 {
            let mut wrong = expected.clone();
            wrong[at] ^= 0x80;
            assert_eq!(Hello::decode(&wrong), None);
        }
        assert_eq!(Hello::decode(&expected[1..]), None);
    }

    #[test]
    fn lanes_of_other_members_are_others() {
        let lane = LaneId { group: GroupId::WORLD, kind: LaneKind::Control };
        let key = |members: &[usize]| LaneKey::new(lane, members);
        assert_eq!(key(&[0, 1, 2]), key(&[0, 1, 2]));
        for other in [&[0, 1][..], &[0, 2, 1], &[0, 1, 3], &[], &[0, 1, 2, 0]] {
            assert_ne!(key(other), key(&[0, 1, 2]));
        }
        assert_eq!(key(&[0, 1]).members, 0xc06a_afcb_fa43_f99b, "the digest is part of the format");
    }
}

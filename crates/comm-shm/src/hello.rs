//! The messages on a connection before memory is shared: one packet each way.

use comm_core::wire::{self, WireError, Writer};
use comm_core::{ChannelId, ChannelKind, GroupId};

/// The first bytes of the packets of both sides: a magic and the version.
const MAGIC: [u8; 8] = *b"\x93cshm\r\n\x05";
/// The size of a hello in bytes.
pub(crate) const HELLO_BYTES: usize = 72;
/// The acceptor's reply, after which the dialer may use the segment.
pub(crate) const WELCOME: [u8; 8] = MAGIC;

/// The channel that a connection is for. Two channels with the same id but different members are
/// different channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChannelKey {
    pub(crate) channel: ChannelId,
    members: u64,
}

impl ChannelKey {
    pub(crate) fn new(channel: ChannelId, members: &[usize]) -> Self {
        Self { channel, members: wire::digest(members.iter().map(|rank| *rank as u64)) }
    }
}

/// The message of the side that connects. The memory of a dialer is attached to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) key: ChannelKey,
    /// The rank of the dialer in the world.
    pub(crate) rank: u32,
    /// A token that only a process with access to the dialer's record in the store knows.
    pub(crate) token: u128,
    /// The token of the acceptor.
    pub(crate) to_token: u128,
    /// The capacity of a ring in bytes. Zero if the sender has no memory to share, and asks the
    /// receiver to be the dialer.
    pub(crate) capacity: u64,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut to = Writer::new();
        to.put(MAGIC).put([self.key.channel.kind as u8, 0, 0, 0]).put(self.rank);
        to.put(self.key.channel.group.0).put(self.key.members).put(self.capacity);
        to.put(self.token).put(self.to_token);
        to.into_array()
    }

    /// Reads a hello of this version.
    pub(crate) fn decode(bytes: &[u8]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let magic = r.get()?;
            if magic != MAGIC {
                let [value] = wire::read_words(&magic);
                return Err(WireError::Unknown { what: "magic", value });
            }
            let kind = r.code("kind of channel", ChannelKind::from_code)?;
            r.take(3)?;
            let (rank, group, members) = (r.get()?, GroupId(r.get()?), r.get()?);
            let key = ChannelKey { channel: ChannelId { group, kind }, members };
            Ok(Self { key, rank, capacity: r.get()?, token: r.get()?, to_token: r.get()? })
        })
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let channel = ChannelId { group: GroupId(0x0807_0605_0403_0201), kind: ChannelKind::PointToPoint };
        let key = ChannelKey { channel, members: 0x1817_1615_1413_1211 };
        Hello { key, rank: 7, token: 5, to_token: 6, capacity: 1 << 18 }
    }

    #[test]
    fn the_bytes_of_a_hello_match_the_specification() {
        let mut expected = b"\x93cshm\r\n\x05\x02\0\0\0\x07\0\0\0".to_vec();
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expected.extend([0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        expected.extend([0, 0, 4, 0, 0, 0, 0, 0]);
        expected.extend(5_u128.to_le_bytes());
        expected.extend(6_u128.to_le_bytes());
        assert_eq!(hello().encode()[..], expected);
        for at in 0..9 {
            let mut wrong = expected.clone();
            wrong[at] ^= 0x80;
            assert!(Hello::decode(&wrong).is_err());
        }
    }

    comm_sim::hostile_bytes!(hellos_are_read_as_they_were_written: [hello()],
        |hello| hello.encode().to_vec(), |bytes| Hello::decode(bytes).ok());

    #[test]
    fn channels_of_other_members_are_others() {
        let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Control };
        let key = |members: &[usize]| ChannelKey::new(channel, members);
        assert_eq!(key(&[0, 1, 2]), key(&[0, 1, 2]));
        for other in [&[0, 1][..], &[0, 2, 1], &[0, 1, 3], &[], &[0, 1, 2, 0]] {
            assert_ne!(key(other), key(&[0, 1, 2]));
        }
        assert_eq!(key(&[0, 1]).members, 0xc06a_afcb_fa43_f99b, "the digest is part of the format");
    }
}

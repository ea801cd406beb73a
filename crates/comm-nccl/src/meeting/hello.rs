//! What a rank says of itself when ranks meet.

use comm_core::Refusal;
use nccl_sys::Version;

/// Which form of a hello this is. Its place is the first byte; all forms end with the number of whoever said it, so that each
/// can be answered.
const FORMAT: u8 = 1;

const DEVICE_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;
const RANK_BYTES: usize = 8;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: Version,
    /// Whether its environment tells NCCL that ranks may share a device.
    pub(super) may_share: bool,
    /// The UUID of its device.
    pub(super) device: [u8; DEVICE_BYTES],
    /// Ranks that it does not expect to take part, lowest first.
    pub(super) without: Vec<usize>,
    /// A number that it drew for this meeting.
    pub(super) nonce: u128,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Version { major, minor, patch, .. } = self.version;
        let mut bytes = vec![FORMAT, u8::from(self.may_share)];
        bytes.extend([major, minor, patch].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(self.device);
        bytes.extend(self.without.iter().flat_map(|rank| (*rank as u64).to_le_bytes()));
        bytes.extend(self.nonce.to_le_bytes());
        bytes
    }

    /// What the bytes say, or why they are no hello of this form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match bytes {
            [FORMAT, body @ ..] => Self::read(body).ok_or(Refusal::Stranger),
            [form, ..] => Err(Refusal::Version { ours: FORMAT.into(), theirs: (*form).into() }),
            [] => Err(Refusal::Stranger),
        }
    }

    fn read(body: &[u8]) -> Option<Self> {
        let (&may_share, rest) = body.split_first()?;
        let (major, rest) = rest.split_first_chunk()?;
        let (minor, rest) = rest.split_first_chunk()?;
        let (patch, rest) = rest.split_first_chunk()?;
        let (device, rest) = rest.split_first_chunk()?;
        let (without, nonce) = rest.split_last_chunk::<NONCE_BYTES>()?;
        let [major, minor, patch] = [major, minor, patch].map(|number| u32::from_le_bytes(*number));
        let version = Version::new(major, minor, patch);
        let (without, []) = without.as_chunks::<RANK_BYTES>() else { return None };
        let rank = |bytes: &[u8; RANK_BYTES]| usize::try_from(u64::from_le_bytes(*bytes)).ok();
        let without = without.iter().map(rank).collect::<Option<_>>()?;
        let nonce = u128::from_le_bytes(*nonce);
        Some(Self { version, may_share: may_share != 0, device: *device, without, nonce })
    }

    /// The number under which whoever said this waits for an answer, whatever else it said.
    pub(super) fn nonce_of(bytes: &[u8]) -> Option<u128> {
        bytes.last_chunk::<NONCE_BYTES>().map(|nonce| u128::from_le_bytes(*nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        version: Version::new(2, 30, 7),
        may_share: true,
        device: [0xD5; 16],
        without: Vec::new(),
        nonce: 1 << 127 | 7,
    };

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        for hello in
            [HELLO, Hello { may_share: false, ..HELLO }, Hello { without: vec![0, 1 << 40], ..HELLO }]
        {
            assert_eq!(Hello::nonce_of(&hello.encode()), Some(hello.nonce));
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn hellos_of_another_length_are_none() {
        let bytes = HELLO.encode();
        let longer = [&bytes[..], &[0]].concat();
        for wrong in [&bytes[..bytes.len() - 1], &longer, &bytes[..1], &[]] {
            assert_eq!(Hello::decode(wrong), Err(Refusal::Stranger), "{} bytes", wrong.len());
        }
    }

    #[test]
    fn a_peer_that_speaks_another_form_is_told_from_a_stranger_and_can_be_answered() {
        for theirs in [0, 2, u8::MAX] {
            // It may say more, or less.
            for said in [&[7; 60][..], &[]] {
                let bytes = [&[theirs], said, &HELLO.nonce.to_le_bytes()].concat();
                assert_eq!(Hello::decode(&bytes), Err(Refusal::Version { ours: 1, theirs: theirs.into() }));
                assert_eq!(Hello::nonce_of(&bytes), Some(HELLO.nonce));
            }
        }
    }
}

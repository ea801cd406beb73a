//! What a rank says of itself when ranks meet.

use comm_core::Refusal;
use comm_core::wire::{self, Reader};
use nccl_sys::Version;

/// Which form of a hello this is. Its place is the first byte; all forms end with the number of whoever said it, so that each
/// can be answered.
const FORMAT: u8 = 1;

const DEVICE_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;

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
        wire::encode(|to| {
            to.put([FORMAT, u8::from(self.may_share)]).put(major).put(minor).put(patch).put(self.device);
            self.without.iter().for_each(|rank| _ = to.size::<u64>(*rank));
            to.put(self.nonce);
        })
    }

    /// What the bytes say, or why they are no hello of this form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match bytes {
            [FORMAT, body @ ..] => Self::read(body).map_err(|_| Refusal::NotAPeer),
            [form, ..] => Err(Refusal::Version { ours: FORMAT.into(), theirs: (*form).into() }),
            [] => Err(Refusal::NotAPeer),
        }
    }

    fn read(body: &[u8]) -> wire::Result<Self> {
        let mut r = Reader::new(body);
        let may_share = r.flag("flag of sharing")?;
        let version = Version::new(r.get()?, r.get()?, r.get()?);
        let (device, rest) = (r.get()?, r.rest());
        let (without, nonce) = rest.split_at(rest.len().saturating_sub(NONCE_BYTES));
        let without = wire::decode(without, |r| r.list_to_end(usize::MAX, Reader::size::<u64>))?;
        Ok(Self { version, may_share, device, without, nonce: wire::decode(nonce, Reader::get)? })
    }

    /// The number under which whoever said this waits for an answer, whatever else it said.
    pub(super) fn nonce_of(bytes: &[u8]) -> Option<u128> {
        let nonce = bytes.last_chunk::<NONCE_BYTES>()?;
        wire::decode(nonce, Reader::get).ok()
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

    fn hellos() -> [Hello; 3] {
        [HELLO, Hello { may_share: false, ..HELLO }, Hello { without: vec![0, 1 << 40], ..HELLO }]
    }

    comm_sim::hostile_bytes!(hellos_are_read_as_they_were_written: hellos(), Hello::encode,
        |bytes| Hello::decode(bytes).ok());

    #[test]
    fn a_hello_ends_with_the_number_to_answer_to() {
        for hello in hellos() {
            assert_eq!(Hello::nonce_of(&hello.encode()), Some(hello.nonce));
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

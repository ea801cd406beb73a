//! The message by which a rank introduces itself to the leader.

use comm_core::Refusal;
use comm_core::wire::{self, Reader};

use crate::Capabilities;

/// Which form of a hello this is. Its place is the first byte; all forms end with the number of
/// whoever said it, so that each can be answered.
const FORMAT: u8 = 1;

const NONCE_BYTES: usize = 16;

/// The capabilities of a rank, and the ranks that it leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) capabilities: Capabilities,
    /// Ranks that it does not expect to take part, lowest first.
    pub(super) without: Vec<usize>,
    /// A number that it drew for this meeting.
    pub(super) nonce: u128,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        wire::encode(|to| {
            self.capabilities.encode(to.put(FORMAT));
            self.without.iter().for_each(|rank| _ = to.size::<u64>(*rank));
            to.put(self.nonce);
        })
    }

    /// Decodes a hello, or returns why the bytes are not one of this format.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match bytes {
            [FORMAT, body @ ..] => Self::read(body).map_err(|_| Refusal::NotAPeer),
            [form, ..] => Err(Refusal::Version { ours: FORMAT.into(), theirs: (*form).into() }),
            [] => Err(Refusal::NotAPeer),
        }
    }

    fn read(body: &[u8]) -> wire::Result<Self> {
        let mut r = Reader::new(body);
        let (capabilities, rest) = (Capabilities::decode(&mut r)?, r.rest());
        let (without, nonce) = rest.split_at(rest.len().saturating_sub(NONCE_BYTES));
        let without = wire::decode(without, |r| r.list_to_end(usize::MAX, Reader::size::<u64>))?;
        Ok(Self { capabilities, without, nonce: wire::decode(nonce, Reader::get)? })
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
        capabilities: Capabilities {
            version: nccl_sys::Version::new(2, 30, 7),
            may_share: true,
            device: [0xD5; 16],
        },
        without: Vec::new(),
        nonce: 1 << 127 | 7,
    };

    fn hellos() -> [Hello; 3] {
        [HELLO, Hello { nonce: 0, ..HELLO }, Hello { without: vec![0, 1 << 40], ..HELLO }]
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

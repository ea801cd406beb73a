//! The leader's answer to all ranks.

use comm_core::wire::{self, Reader};
use comm_core::{Error, Invalid, Result};

use super::hello::Hello;
use super::stranger;
use crate::error::{NCCL, unavailable};
use crate::{Capabilities, UniqueId};

const ID: u8 = 0;
const WORDS: u8 = 1;
const SHARED: u8 = 2;
const SETTING: u8 = 3;

/// Returns an error if ranks leave out different ranks, or if NCCL cannot connect them. The leader
/// comes first.
pub(super) fn agree(hellos: &[(usize, Hello)]) -> Result<()> {
    let Some((host, first)) = hellos.first() else { return Ok(()) };
    if let Some((rank, other)) = hellos.iter().find(|(_, hello)| hello.without != first.without) {
        let reason = format!(
            "rank {host} says that, and rank {rank} says {:?}: all that are left must say the same",
            other.without
        );
        return Err(Error::setting("ranks to leave out", format!("{:?}", first.without), reason));
    }
    let ranks: Vec<_> = hellos.iter().map(|(rank, hello)| (*rank, hello.capabilities)).collect();
    Capabilities::check(&ranks)
}

/// An answer as bytes.
pub(super) fn encode(agreed: &Result<UniqueId>) -> Vec<u8> {
    match agreed {
        Ok(id) => [&[ID][..], id.as_bytes()].concat(),
        Err(Error::Invalid(Invalid::SharedDevice { ranks: (first, second), device, advice })) => {
            let words = format!("{device}\n{advice}");
            wire::encode(|to| {
                _ = to.put(SHARED).size::<u64>(*first).size::<u64>(*second).raw(words.as_bytes())
            })
        }
        Err(Error::Invalid(Invalid::Setting { name, value, reason })) => {
            [&[SETTING][..], [&**name, value, reason].join("\n").as_bytes()].concat()
        }
        Err(error) => [&[WORDS][..], error.to_string().as_bytes()].concat(),
    }
}

/// The id in an answer of the host, or why there is none.
pub(super) fn decode(answer: &[u8], host: usize) -> Result<UniqueId> {
    let refused = |why: Option<Invalid>| why.map_or_else(|| stranger(host), Error::from);
    match answer.split_first() {
        Some((&ID, id)) => UniqueId::from_bytes(id),
        Some((&SHARED, why)) => Err(refused(read_shared(why))),
        Some((&SETTING, why)) => Err(refused(read_setting(why))),
        Some((_, words)) => {
            Err(unavailable(NCCL, format!("rank {host} says: {}", String::from_utf8_lossy(words))))
        }
        None => Err(stranger(host)),
    }
}

fn read_shared(refused: &[u8]) -> Option<Invalid> {
    let mut r = Reader::new(refused);
    let ranks = (r.size::<u64>().ok()?, r.size::<u64>().ok()?);
    let (device, advice) = std::str::from_utf8(r.rest()).ok()?.split_once('\n')?;
    Some(Invalid::SharedDevice { ranks, device: device.into(), advice: advice.into() })
}

fn read_setting(refused: &[u8]) -> Option<Invalid> {
    let mut words = std::str::from_utf8(refused).ok()?.splitn(3, '\n').map(str::to_owned);
    Some(Invalid::Setting { name: words.next()?, value: words.next()?, reason: words.next()? })
}

#[cfg(test)]
mod tests {
    use nccl_sys::Version;

    use super::*;

    fn hello(device: u8) -> Hello {
        let version = Version::new(2, 28, 9);
        let capabilities = Capabilities { version, may_share: true, device: [device; 16] };
        Hello { capabilities, without: Vec::new(), nonce: 0 }
    }

    fn agreed(hellos: &[Hello]) -> Result<()> {
        agree(&hellos.iter().cloned().enumerate().collect::<Vec<_>>())
    }

    #[test]
    fn an_answer_is_an_id_of_full_length_or_a_reason() {
        assert_eq!(decode(&[[0; 1].as_slice(), &[7; 128]].concat(), 3).unwrap().as_bytes(), &[7; 128]);
        for (answer, words) in [
            ([[0; 1].as_slice(), &[7; 127]].concat(), "127 elements, but 128 are needed"),
            (b"\x01versions".to_vec(), "rank 3 says: versions"),
            (
                b"\x02too short".to_vec(),
                "rank 3, through the store failed: it does not speak the protocol of comm",
            ),
            (b"\x03no reason".to_vec(), "it does not speak the protocol of comm"),
            (vec![], "it does not speak the protocol of comm"),
        ] {
            let error = decode(&answer, 3).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_shared_device_is_the_same_error_on_every_rank() {
        assert_same_everywhere(&agreed(&[1, 2, 3, 2].map(hello)).unwrap_err());
    }

    #[track_caller]
    fn assert_same_everywhere(error: &Error) {
        let Error::Invalid(there) = decode(&encode(&Err(error.clone())), 0).unwrap_err() else { panic!() };
        assert!(matches!(error, Error::Invalid(here) if *here == there));
    }

    #[test]
    fn ranks_that_leave_out_unlike_ones_are_told_so_on_every_rank() {
        let mut ranks = [1, 2, 3].map(hello);
        ranks.iter_mut().for_each(|hello| hello.without = vec![4]);
        assert!(agreed(&ranks).is_ok());
        ranks[2].without.push(5);
        let error = agreed(&ranks).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid: ranks to leave out = \"[4]\": rank 0 says that, and rank 2 says [4, 5]: all that are left must say \
             the same"
        );
        assert_same_everywhere(&error);
    }
}

//! What rank 0 answers when it has heard everybody.

use comm_core::wire::{self, Reader};
use comm_core::{Error, Invalid, Result};

use super::hello::Hello;
use super::stranger;
use crate::environment::SHARE_DEVICES;
use crate::error::{NCCL, unavailable};
use crate::library::SHARING_SINCE;
use crate::{Device, UniqueId};

const ID: u8 = 0;
const WORDS: u8 = 1;
const SHARED: u8 = 2;
const SETTING: u8 = 3;

/// Refuses ranks that leave out unlike ones, that have unlike versions, and ranks on one device where NCCL would not take them. The
/// host comes first.
pub(super) fn agree(hellos: &[(usize, Hello)]) -> Result<()> {
    let Some((host, first)) = hellos.first() else { return Ok(()) };
    if let Some((rank, other)) = hellos.iter().find(|(_, hello)| hello.without != first.without) {
        let reason = format!(
            "rank {host} says that, and rank {rank} says {:?}: all that are left must say the same",
            other.without
        );
        return Err(Error::setting("ranks to leave out", format!("{:?}", first.without), reason));
    }
    let other = hellos.iter().filter(|(_, hello)| hello.version != first.version);
    let others: Vec<String> =
        other.map(|(rank, hello)| format!("rank {rank} has {}", hello.version)).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        let words =
            format!("ranks have different versions of NCCL: rank {host} has {}, {others}", first.version);
        return Err(unavailable(NCCL, words));
    }
    let Some((ranks, device)) = shared(hellos) else { return Ok(()) };
    let not_told: Vec<String> =
        hellos.iter().filter(|(_, hello)| !hello.may_share).map(|(rank, _)| format!("rank {rank}")).collect();
    let advice = if first.version < SHARING_SINCE {
        format!(
            "NCCL {} needs a device of its own for each rank; from {SHARING_SINCE} on, ranks can share one with \
             {SHARE_DEVICES}=1",
            first.version
        )
    } else if not_told.is_empty() {
        return Ok(());
    } else {
        format!(
            "NCCL needs a device of its own for each rank, unless {SHARE_DEVICES}=1 is set for all of them, and it \
             is not for {}",
            not_told.join(", ")
        )
    };
    Err(Invalid::SharedDevice { ranks, device: Device::name_of(&device), advice }.into())
}

/// The first two ranks on one device, if there are any, and the device.
fn shared(hellos: &[(usize, Hello)]) -> Option<((usize, usize), [u8; 16])> {
    hellos.iter().enumerate().find_map(|(at, (second, hello))| {
        let (first, _) = hellos[..at].iter().find(|(_, earlier)| earlier.device == hello.device)?;
        Some(((*first, *second), hello.device))
    })
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

    fn hello(version: Version, device: u8, may_share: bool) -> Hello {
        Hello { version, may_share, device: [device; 16], without: Vec::new(), nonce: 0 }
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
        let version = Version::new(2, 28, 9);
        let error = agreed(&[1, 2, 3, 2].map(|device| hello(version, device, true))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid: ranks 1 and 3 are both on device GPU-02020202-0202-0202-0202-020202020202: NCCL 2.28.9 needs a \
             device of its own for each rank; from 2.30.3 on, ranks can share one with NCCL_MULTI_RANK_GPU_ENABLE=1"
        );
        assert_same_everywhere(&error);
    }

    #[track_caller]
    fn assert_same_everywhere(error: &Error) {
        let Error::Invalid(there) = decode(&encode(&Err(error.clone())), 0).unwrap_err() else { panic!() };
        assert!(matches!(error, Error::Invalid(here) if *here == there));
    }

    #[test]
    fn ranks_that_leave_out_unlike_ones_are_told_so_on_every_rank() {
        let mut ranks = [1, 2, 3].map(|device| hello(Version::new(2, 30, 7), device, false));
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

    #[test]
    fn a_device_may_be_shared_where_nccl_can_and_all_ranks_tell_it() {
        let (new, old) = (Version::new(2, 30, 3), Version::new(2, 30, 2));
        assert!(agreed(&[1, 2, 3].map(|device| hello(old, device, false))).is_ok());
        assert!(agreed(&[1, 2, 1].map(|device| hello(new, device, true))).is_ok());
        assert!(agreed(&[1, 2, 1].map(|device| hello(old, device, true))).is_err());
        let mut ranks = [1, 2, 1].map(|device| hello(new, device, true));
        ranks[1].may_share = false;
        let refused = agreed(&ranks).unwrap_err().to_string();
        assert!(refused.contains("ranks 0 and 2") && refused.ends_with("not for rank 1"), "{refused}");
    }

    #[test]
    fn unlike_versions_are_refused_before_anything_else() {
        let refused =
            agreed(&[hello(Version::new(2, 30, 7), 1, true), hello(Version::new(2, 18, 3), 1, true)]);
        assert!(refused.unwrap_err().to_string().contains("rank 0 has 2.30.7, rank 1 has 2.18.3"));
    }
}

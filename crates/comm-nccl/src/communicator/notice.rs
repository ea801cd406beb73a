//! Messages on the control channel to ranks that may not expect any.

use comm_core::{Signature, wire};

/// The largest size of a failure's reason in bytes.
pub(super) const REASON_MAX: usize = 4096;

/// The call in which a rank waits, with its number among the collectives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) sequence: u64,
    pub(super) call: Signature,
}

/// A message to ranks that may not expect one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    Waiting(Announcement),
    /// The first collective that the sender cannot complete, and the reason.
    Failed(u64, String),
}

impl Notice {
    pub(super) fn encode(&self) -> Vec<u8> {
        wire::encode(|to| match self {
            Self::Waiting(Announcement { sequence, call }) => call.encode(to.put(0_u8).put(*sequence)),
            Self::Failed(sequence, reason) => {
                to.put(1_u8).put(*sequence).text::<u16>(reason, REASON_MAX);
            }
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> wire::Result<Self> {
        wire::decode(bytes, |r| {
            let (is_failure, sequence) = (r.flag("flag of a failure")?, r.get()?);
            if is_failure {
                return Ok(Self::Failed(sequence, r.text::<u16>(REASON_MAX)?.to_owned()));
            }
            Ok(Self::Waiting(Announcement { sequence, call: Signature::decode(r)? }))
        })
    }
}

#[cfg(test)]
mod tests {
    use comm_core::{Collective, GroupId};

    use super::*;

    fn notices() -> [Notice; 3] {
        let call = Signature::new(GroupId(7), Collective::Barrier, "nccl");
        let waiting = Notice::Waiting(Announcement { sequence: 3, call });
        [waiting, Notice::Failed(0, String::new()), Notice::Failed(7, "no device".into())]
    }

    comm_sim::hostile_bytes!(notices_are_read_as_they_were_written: notices(), Notice::encode,
        |bytes| Notice::decode(bytes).ok());
}

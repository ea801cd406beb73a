//! Messages in which ranks inform each other of failures and of their exit.

use comm_core::wire::{self, Writer};

/// The longest reason that is sent, in bytes.
const REASON_MAX: usize = 900;

const ABORTED: u8 = 1;
const LEFT: u8 = 2;

/// The calls that a failure ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) collectives: bool,
    pub(crate) messages: bool,
}

impl Scope {
    pub(crate) const ALL: Self = Self { collectives: true, messages: true };
    pub(crate) const COLLECTIVES: Self = Self { collectives: true, messages: false };
    pub(crate) const MESSAGES: Self = Self { collectives: false, messages: true };
}

/// A message about the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It failed or aborted.
    Aborted {
        scope: Scope,
        /// The number of the collective in which it failed; 0 if none.
        call: u64,
        reason: String,
    },
    /// It closed the communicator after this call.
    Left { after: u64 },
}

impl Notice {
    pub(crate) fn encode(&self) -> Vec<u8> {
        wire::encode(|to: &mut Writer| match self {
            Self::Aborted { scope, call, reason } => {
                to.put([ABORTED, u8::from(scope.collectives), u8::from(scope.messages)]);
                to.put(*call).text::<u16>(reason, REASON_MAX);
            }
            Self::Left { after } => {
                to.put(LEFT).put(*after);
            }
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> wire::Result<Self> {
        wire::decode(bytes, |r| match r.get::<u8>()? {
            ABORTED => {
                let scope = Scope { collectives: r.flag("scope")?, messages: r.flag("scope")? };
                Ok(Self::Aborted { scope, call: r.get()?, reason: r.text::<u16>(REASON_MAX)?.to_owned() })
            }
            LEFT => Ok(Self::Left { after: r.get()? }),
            other => Err(wire::WireError::Unknown { what: "notice", value: other.into() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_they_were_written() {
        for notice in [
            Notice::Aborted { scope: Scope::ALL, call: 3, reason: "enough".into() },
            Notice::Aborted { scope: Scope::MESSAGES, call: 0, reason: String::new() },
            Notice::Left { after: 7 },
        ] {
            assert_eq!(Notice::decode(&notice.encode()), Ok(notice));
        }
    }

    #[test]
    fn malformed_notices_are_refused_and_long_reasons_are_cut() {
        assert!(Notice::decode(&[]).is_err() && Notice::decode(&[3]).is_err());
        let long = Notice::Aborted { scope: Scope::ALL, call: 0, reason: "r".repeat(5000) };
        assert!(
            matches!(Notice::decode(&long.encode()), Ok(Notice::Aborted { reason, .. }) if reason.len() == 900)
        );
    }
}

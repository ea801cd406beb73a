//! What ranks write into the store to find each other, as text.

use std::fmt;
use std::str::FromStr;

use crate::host::HostId;

/// The first word of every record: the version of the format and of what is said on a connection.
const VERSION: &str = "1";

/// Where a rank is found, and how it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// The name of its socket, which anybody on the host can see.
    pub(crate) door: u128,
    /// A number that only who can read the store knows.
    pub(crate) token: u128,
}

/// What a process says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) world_size: usize,
    pub(crate) host: HostId,
    pub(crate) member: Member,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world_size, host, member: Member { door, token } } = self;
        write!(f, "{VERSION} {world_size} {host} {door:032x} {token:032x}")
    }
}

/// A text in the store that no correct process of this version writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed;

impl FromStr for Record {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let parse = || {
            let mut words = text.split(' ');
            let version = words.next()?;
            let record = Self {
                world_size: words.next()?.parse().ok()?,
                host: words.next()?.parse().ok()?,
                member: Member {
                    door: u128::from_str_radix(words.next()?, 16).ok()?,
                    token: u128::from_str_radix(words.next()?, 16).ok()?,
                },
            };
            (version == VERSION && words.next().is_none()).then_some(record)
        };
        parse().ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_store() {
        let host: HostId = "0000000000000000000000000000000b.4026531833.4026531837.1000".parse().unwrap();
        let record = Record { world_size: 3, host, member: Member { door: 0xd, token: u128::MAX } };
        let text = record.to_string();
        assert_eq!(
            text,
            "1 3 0000000000000000000000000000000b.4026531833.4026531837.1000 \
             0000000000000000000000000000000d ffffffffffffffffffffffffffffffff"
        );
        assert_eq!(text.parse(), Ok(record));
        for other in ["", "1 3", &text.replacen('1', "2", 1), &format!("{text} more")] {
            assert_eq!(other.parse::<Record>(), Err(Malformed), "{other:?}");
        }
    }
}

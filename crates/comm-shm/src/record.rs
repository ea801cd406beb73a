//! The text records that ranks write into the store to find each other.

use std::fmt;
use std::str::FromStr;

use crate::host::HostId;

/// The first word of every record: the version of the format and of what is said on a connection.
const VERSION: &str = "5";

/// Where a rank is found, and how it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The name of its socket, which anybody on the host can see.
    pub(crate) listener: u128,
    /// A number that only who can read the store knows.
    pub(crate) token: u128,
}

/// Where a rank shares memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: HostId,
    pub(crate) member: Address,
}

/// The record of a process: the address where it shares memory, if it can share any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record(pub(crate) Option<Place>);

/// The text of a rank without an address.
const NOWHERE: &str = "-";

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} ")?;
        match self.0 {
            Some(Place { host, member: Address { listener, token } }) => {
                write!(f, "{host} {listener:032x} {token:032x}")
            }
            None => f.write_str(NOWHERE),
        }
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
            let place = match words.next()? {
                NOWHERE => None,
                host => {
                    let mut number = || u128::from_str_radix(words.next()?, 16).ok();
                    let host = host.parse().ok()?;
                    Some(Place { host, member: Address { listener: number()?, token: number()? } })
                }
            };
            (version == VERSION && words.next().is_none()).then_some(Self(place))
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
        let place = Place { host, member: Address { listener: 0xd, token: u128::MAX } };
        let record = Record(Some(place));
        let text = record.to_string();
        assert_eq!(
            text,
            "5 0000000000000000000000000000000b.4026531833.4026531837.1000 \
             0000000000000000000000000000000d ffffffffffffffffffffffffffffffff"
        );
        assert_eq!(text.parse(), Ok(record));
        let nowhere = Record(None);
        assert_eq!(nowhere.to_string(), "5 -");
        assert_eq!("5 -".parse(), Ok(nowhere));
        for other in ["", "5", "5 - 0", &text.replacen('5', "4", 1), &format!("{text} more")] {
            assert_eq!(other.parse::<Record>(), Err(Malformed), "{other:?}");
        }
    }
}

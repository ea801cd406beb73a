//! The text records that ranks write into the store to find each other.

use std::fmt;

use comm_rendezvous::Processors;

use crate::host::HostId;

/// The first field of every record: the version of the format.
const VERSION: &str = "13";

/// The address of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The name of its socket, which every process of the host can see.
    pub(crate) listener: u128,
    /// A number that only processes with access to the store know.
    pub(crate) token: u128,
}

/// The host and address at which a rank shares memory, and its processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) host: HostId,
    pub(crate) member: Address,
    pub(crate) processors: Processors,
}

/// The record of a process: the location at which it shares memory, if it can share any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record(pub(crate) Option<Location>);

/// The text of a rank without an address.
const NO_LOCATION: &str = "-";

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} ")?;
        match self.0 {
            Some(Location { host, member: Address { listener, token }, processors }) => {
                write!(f, "{host} {listener:032x} {token:032x} {processors}")
            }
            None => f.write_str(NO_LOCATION),
        }
    }
}

impl Record {
    /// Parses a record. Returns `None` for text that no correct process of this version writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let version = fields.next()?;
        let location = match fields.next()? {
            NO_LOCATION => None,
            host => {
                let mut number = || u128::from_str_radix(fields.next()?, 16).ok();
                let host = host.parse().ok()?;
                let member = Address { listener: number()?, token: number()? };
                Some(Location { host, member, processors: Processors::parse(fields.next()?)? })
            }
        };
        (version == VERSION && fields.next().is_none()).then_some(Self(location))
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let host = "0000000000000000000000000000000b.4026531833.4026531837.1000".parse().unwrap();
        let member = Address { listener: 0xd, token: u128::MAX };
        Record(Some(Location { host, member, processors: Processors::parse("f0").unwrap() }))
    }

    comm_sim::hostile_bytes!(records_are_read_as_they_were_written: [record(), Record(None)],
        |record| record.to_string().into_bytes(), |bytes| Record::parse(std::str::from_utf8(bytes).ok()?));

    #[test]
    fn a_record_has_the_text_of_the_format() {
        let text = record().to_string();
        assert_eq!(
            text,
            "13 0000000000000000000000000000000b.4026531833.4026531837.1000 \
             0000000000000000000000000000000d ffffffffffffffffffffffffffffffff f0"
        );
        assert_eq!(Record(None).to_string(), "13 -");
        for other in [
            "",
            "13",
            "13 - 0",
            &text.replacen("13", "12", 1),
            &format!("{text} more"),
            &text.replace(" f0", ""),
        ] {
            assert_eq!(Record::parse(other), None, "{other:?}");
        }
    }
}

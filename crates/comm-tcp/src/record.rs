//! The text records that ranks write into the store to find each other.

use std::fmt;
use std::net::SocketAddr;

/// The first field of every record: the version of the format.
const VERSION: &str = "3";

/// The process of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// A number that only this process has.
    pub(crate) process: u64,
    /// The address on which it listens.
    pub(crate) address: SocketAddr,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, address } = self;
        write!(f, "{VERSION} {process:016x} {address}")
    }
}

impl Record {
    /// Parses a record. Returns `None` for text that no correct process of this version writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let version = fields.next()?;
        let process = u64::from_str_radix(fields.next()?, 16).ok()?;
        let address = fields.next()?.parse().ok()?;
        let whole = version == VERSION && fields.next().is_none();
        whole.then_some(Self { process, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str) -> Record {
        Record { process: 0xfeed, address: address.parse().unwrap() }
    }

    comm_sim::hostile_bytes!(records_are_read_as_they_were_written:
        [member("10.0.0.1:4000"), member("[fd00::2]:4000")], |record| record.to_string().into_bytes(),
        |bytes| Record::parse(std::str::from_utf8(bytes).ok()?));

    #[test]
    fn a_record_has_the_text_of_the_format() {
        assert_eq!(member("10.0.0.1:4000").to_string(), "3 000000000000feed 10.0.0.1:4000");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "3 feed",
            "3 feed 10.0.0.1:4000 1",
            "3 feed nowhere",
            "3 feet 10.0.0.1:4000",
            "2 feed 10.0.0.1:4000 1 65536",
        ] {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
    }
}

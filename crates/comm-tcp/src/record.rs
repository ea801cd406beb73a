//! The text records that ranks write into the store to find each other.

use std::fmt;
use std::net::SocketAddr;

use comm_rendezvous::Processors;

/// The first field of every record: the version of the format.
const VERSION: &str = "5";
/// The most addresses of a rank.
pub(crate) const ADDRESSES_MAX: usize = 8;

/// The process of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// A number that only this process has.
    pub(crate) process: u64,
    pub(crate) processors: Processors,
    /// The address to which channels are opened.
    pub(crate) address: SocketAddr,
    /// The addresses of other interfaces, to which sockets may be added.
    pub(crate) others: Vec<SocketAddr>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, processors, address, others } = self;
        write!(f, "{VERSION} {process:016x} {processors} {address}")?;
        others.iter().try_for_each(|other| write!(f, " {other}"))
    }
}

impl Record {
    /// Parses a record. Returns `None` for text that no correct process of this version writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let version = fields.next()?;
        let process = u64::from_str_radix(fields.next()?, 16).ok()?;
        let processors = Processors::parse(fields.next()?)?;
        let address = fields.next()?.parse().ok()?;
        let others: Vec<SocketAddr> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let is_valid = version == VERSION && others.len() < ADDRESSES_MAX;
        is_valid.then_some(Self { process, processors, address, others })
    }

    /// All addresses, first the one to which channels are opened.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        [self.address].into_iter().chain(self.others.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str, others: &[&str]) -> Record {
        let parse = |address: &&str| address.parse().unwrap();
        let (address, others) = (parse(&address), others.iter().map(parse).collect());
        Record { process: 0xfeed, processors: Processors::parse("c").unwrap(), address, others }
    }

    comm_sim::hostile_bytes!(records_are_read_as_they_were_written:
        [member("10.0.0.1:4000", &[]), member("[fd00::2]:4000", &["10.0.0.1:4001", "[fd01::2]:1"])], |record| record.to_string().into_bytes(),
        |bytes| Record::parse(std::str::from_utf8(bytes).ok()?));

    #[test]
    fn a_record_has_the_text_of_the_format() {
        assert_eq!(member("10.0.0.1:4000", &[]).to_string(), "5 000000000000feed c 10.0.0.1:4000");
        let several = member("10.0.0.1:4000", &["10.1.0.1:4000", "[fd00::2]:5"]);
        assert_eq!(several.to_string(), "5 000000000000feed c 10.0.0.1:4000 10.1.0.1:4000 [fd00::2]:5");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "5 feed c",
            "5 feed 10.0.0.1:4000",
            "5 feed c 10.0.0.1:4000 1",
            "5 feed c 10.0.0.1:4000 ",
            "5 feed c nowhere",
            "5 feet c 10.0.0.1:4000",
            "4 feed c 10.0.0.1:4000",
        ] {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
        let others = |count: usize| member("10.0.0.1:1", &vec!["10.0.0.1:2"; count]).to_string();
        assert!(Record::parse(&others(ADDRESSES_MAX - 1)).is_some());
        assert!(Record::parse(&others(ADDRESSES_MAX)).is_none());
    }
}

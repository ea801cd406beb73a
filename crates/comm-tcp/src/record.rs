//! What ranks write into the store to find each other, as text.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::TcpConfig;
use crate::stripes::Stripes;

/// The first word of every record: the version of the format.
const VERSION: &str = "1";

/// One process that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// A number that only this process has.
    pub(crate) process: u64,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// How it was told to deal out streams to sockets.
    pub(crate) stripes: Stripes,
}

/// What a process says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) world_size: usize,
    pub(crate) member: Member,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world_size, member: Member { process, address, stripes } } = self;
        let Stripes { sockets, bytes } = stripes;
        write!(f, "{VERSION} {world_size} {process:016x} {address} {sockets} {bytes}")
    }
}

/// A text in the store that no correct process writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

impl FromStr for Record {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let parse = || {
            let mut words = text.split(' ');
            let version = words.next()?;
            let record = Self {
                world_size: words.next()?.parse().ok()?,
                member: Member {
                    process: u64::from_str_radix(words.next()?, 16).ok()?,
                    address: words.next()?.parse().ok()?,
                    stripes: Stripes {
                        sockets: words.next()?.parse().ok()?,
                        bytes: words.next()?.parse().ok()?,
                    },
                },
            };
            let Stripes { sockets, bytes } = record.member.stripes;
            let usable = (1..=TcpConfig::SOCKETS_MAX).contains(&usize::from(sockets)) && bytes > 0;
            (version == VERSION && words.next().is_none() && usable).then_some(record)
        };
        parse().ok_or_else(|| Malformed(text.into()))
    }
}

/// How the meeting ended, as rank 0 tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All are there.
    Met(Vec<Record>),
    /// These ranks did not come before rank 0's deadline.
    Missing(Vec<usize>),
    /// This rank came with another size of the world.
    WorldSize { rank: usize, world_size: usize },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met(records) => {
                f.write_str("met")?;
                records.iter().try_for_each(|record| write!(f, "\n{record}"))
            }
            Self::Missing(ranks) => {
                f.write_str("missing")?;
                ranks.iter().try_for_each(|rank| write!(f, "\n{rank}"))
            }
            Self::WorldSize { rank, world_size } => write!(f, "world-size\n{rank}\n{world_size}"),
        }
    }
}

impl FromStr for Outcome {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut lines = text.split('\n');
        let malformed = || Malformed(text.into());
        let number = |line: &str| line.parse::<usize>().map_err(|_| malformed());
        match lines.next() {
            Some("met") => Ok(Self::Met(lines.map(str::parse).collect::<Result<_, _>>()?)),
            Some("missing") => Ok(Self::Missing(lines.map(number).collect::<Result<_, _>>()?)),
            Some("world-size") => {
                let numbers = lines.map(number).collect::<Result<Vec<_>, _>>()?;
                match numbers[..] {
                    [rank, world_size] => Ok(Self::WorldSize { rank, world_size }),
                    _ => Err(malformed()),
                }
            }
            _ => Err(malformed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: &str) -> Record {
        let stripes = Stripes { sockets: 4, bytes: 65536 };
        Record {
            world_size: 3,
            member: Member { process: 0xfeed, address: address.parse().unwrap(), stripes },
        }
    }

    #[test]
    fn records_survive_the_store() {
        let four = record("10.0.0.1:4000");
        assert_eq!(four.to_string(), "1 3 000000000000feed 10.0.0.1:4000 4 65536");
        let six = record("[fd00::2]:4000");
        for record in [four, six] {
            assert_eq!(record.to_string().parse(), Ok(record));
        }
        let outcomes = [
            Outcome::Met(vec![four, six]),
            Outcome::Met(vec![]),
            Outcome::Missing(vec![0, 7]),
            Outcome::Missing(vec![]),
            Outcome::WorldSize { rank: 2, world_size: 5 },
        ];
        for outcome in outcomes {
            assert_eq!(outcome.to_string().parse(), Ok(outcome));
        }
    }

    #[test]
    fn other_texts_are_malformed() {
        for text in [
            "",
            "2 3 feed 10.0.0.1:4000 1 9",
            "1 3 feed",
            "1 3 feed 10.0.0.1:4000",
            "1 3 feed 10.0.0.1:4000 1 9 more",
            "1 3 feed host:1 1 9",
            "1 3 feed 10.0.0.1:4000 0 9",
            "1 3 feed 10.0.0.1:4000 65 9",
            "1 3 feed 10.0.0.1:4000 1 0",
        ] {
            assert_eq!(text.parse::<Record>(), Err(Malformed(text.into())));
        }
        for text in ["", "met\n", "missing\nx", "world-size\n1", "world-size\n1\n2\n3"] {
            assert!(text.parse::<Outcome>().is_err(), "{text:?}");
        }
    }
}

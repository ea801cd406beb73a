//! The names of sockets.

use std::fmt;

/// The start of the name of every socket.
const PREFIX: &str = "comm-monitor";

/// The abstract name of the socket of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct MonitorName {
    /// A number that all ranks of a launch share: the id of the job if it has one.
    pub launch: u64,
    /// The rank in the world of the process.
    pub rank: usize,
    /// The id of the process, in its own PID namespace.
    pub pid: u32,
    /// Distinguishes several worlds of a process.
    pub number: u32,
}

impl MonitorName {
    /// Parses a name, as `/proc/net/unix` shows it without the leading `@`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let mut next = || parts.next();
        (next()? == PREFIX).then_some(())?;
        let launch = u64::from_str_radix(next()?, 16).ok()?;
        let found = Self {
            launch,
            rank: next()?.parse().ok()?,
            pid: next()?.parse().ok()?,
            number: next()?.parse().ok()?,
        };
        next().is_none().then_some(found)
    }
}

impl fmt::Display for MonitorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launch, rank, pid, number } = self;
        write!(f, "{PREFIX}/{launch:016x}/{rank}/{pid}/{number}")
    }
}

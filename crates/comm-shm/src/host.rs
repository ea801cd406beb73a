//! Identifies the processes that can share memory.

use std::fmt;
use std::str::FromStr;

use comm_core::{Error, Result};

use crate::credentials::own_user;

/// Identifies the processes that can share memory: the boot of the kernel, the network and user
/// namespaces, and the user. Processes with equal ids can open channels of shared memory.
///
/// Host names and addresses are not part of the id: containers on one host may have different ones,
/// and different hosts may have the same. The network namespace is part of it, because ranks find
/// each other's sockets there, and so is the user, because no rank shares memory with a process of
/// another user.
///
/// Machines that were restored from one image of a running machine may have equal ids for a while;
/// a connection between their processes is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId {
    boot: u128,
    network: u64,
    users: u64,
    user: u32,
}

impl HostId {
    /// Returns the id of this process.
    ///
    /// # Errors
    /// [`Error::Io`] if `/proc` is not mounted.
    pub fn of_this_process() -> Result<Self> {
        Ok(Self {
            boot: boot_id()?,
            network: namespace("/proc/self/ns/net")?,
            users: namespace("/proc/self/ns/user")?,
            user: own_user(),
        })
    }

    /// Returns this id restricted to processes with a name. They share no memory with processes
    /// that have another name or none.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        // FNV-1a, which is the same in every process, seeded with the boot id.
        const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
        let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        Self { boot: name.bytes().fold(self.boot, mix), ..self }
    }
}

/// Returns the boot id, a random UUID of each boot of the kernel.
fn boot_id() -> Result<u128> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).map_err(|e| Error::io(format!("read {PATH}"), e))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).map_err(|_| {
        let reason = std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{text:?} is not a UUID"));
        Error::io(format!("read {PATH}"), reason)
    })
}

/// Returns the inode of a namespace, which identifies it.
fn namespace(path: &str) -> Result<u64> {
    rustix::fs::stat(path)
        .map(|stat| stat.st_ino)
        .map_err(|errno| Error::io(format!("read the inode of {path}"), errno.into()))
}

/// Text without spaces, which [`str::parse`] reads.
impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boot, network, users, user } = self;
        write!(f, "{boot:032x}.{network}.{users}.{user}")
    }
}

/// The error for a text that is not a host id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseHostIdError;

impl fmt::Display for ParseHostIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a host id")
    }
}

impl std::error::Error for ParseHostIdError {}

impl FromStr for HostId {
    type Err = ParseHostIdError;

    fn from_str(text: &str) -> Result<Self, ParseHostIdError> {
        let parse = || {
            let mut fields = text.split('.');
            let host = Self {
                boot: u128::from_str_radix(fields.next()?, 16).ok()?,
                network: fields.next()?.parse().ok()?,
                users: fields.next()?.parse().ok()?,
                user: fields.next()?.parse().ok()?,
            };
            fields.next().is_none().then_some(host)
        };
        parse().ok_or(ParseHostIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_process_round_trips_through_text() {
        let host = HostId::of_this_process().unwrap();
        assert_eq!(HostId::of_this_process().unwrap(), host);
        assert_eq!(host.to_string().parse(), Ok(host));
        assert!(!host.to_string().contains(char::is_whitespace));
    }

    #[test]
    fn names_separate_processes_of_one_host() {
        let host = HostId { boot: 1, network: 2, users: 3, user: 4 };
        assert_eq!(host.with_name("a"), host.with_name("a"));
        assert_ne!(host.with_name("a"), host.with_name("b"));
        assert_ne!(host.with_name("a"), host);
        assert_ne!(host.with_name("a"), HostId { boot: 2, ..host }.with_name("a"));
        let text = host.with_name("ab").to_string();
        assert_eq!(text, "000000ec620000000000000000918336.2.3.4", "the identity is part of the format");
    }

    #[test]
    fn every_field_of_an_id_counts() {
        let host = HostId { boot: 1, network: 2, users: 3, user: 4 };
        let others = [
            HostId { boot: 9, ..host },
            HostId { network: 9, ..host },
            HostId { users: 9, ..host },
            HostId { user: 9, ..host },
        ];
        for other in others {
            assert_ne!(other, host);
            assert_eq!(other.to_string().parse(), Ok(other));
        }
        for text in ["", "1", "1.2.3", "1.2.3.4.5", "x.2.3.4", "1.2.3.-4"] {
            assert_eq!(text.parse::<HostId>(), Err(ParseHostIdError), "{text:?}");
        }
    }
}

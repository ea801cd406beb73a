//! The data that ranks of TCP exchange through a store, and the settings that must be equal.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use comm_core::{During, Error, Group, GroupId, Loss, Membership, Result};
use comm_rendezvous::Member;

use crate::config::TcpConfig;
use crate::record::Record;
use crate::secret::Secret;

/// The identity of this rank, and how the others reach it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// The rank, and the ranks that it is to meet.
    pub member: Member,
    /// The shared secret. A side that has one refuses a side that has not.
    pub secret: Option<Secret>,
    /// Where the store is, unless it is on this machine. The published address is the source
    /// address of packets to the store. Without it, that address is loopback, and all
    /// ranks must be on one machine.
    pub store: Option<SocketAddr>,
    /// The network interfaces whose addresses may be published, in NCCL's syntax: `eth`
    /// for all whose names begin like this, `=eth0` for exactly this one, `^docker,lo` for all
    /// others, and lists with commas.
    pub interface: Option<String>,
    /// The address to listen on. It is also published unless it is unspecified (`0.0.0.0`, `::`).
    /// `None` means the published address.
    pub bind: Option<IpAddr>,
    /// The ports to listen on: the first of them that is free, beginning at an offset by rank. Each
    /// rank of a host needs one. `None` lets the system choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// The configuration of the sockets of channels.
    pub tcp: TcpConfig,
}

impl RendezvousConfig {
    /// One rank of a world on one machine, with the default timeout of five minutes.
    #[must_use]
    pub fn new(membership: Membership) -> Self {
        Self::from(Member::new(membership))
    }

    /// The group of all ranks, if the settings can be used.
    pub(crate) fn check(&self) -> Result<Group> {
        self.tcp.congestion.check()?;
        Group::new(GroupId::WORLD, self.member.membership())
    }

    /// The member with the settings that are compared by ranks of this name of a transport.
    #[must_use]
    pub fn member_over(&self, transport: &str) -> Member {
        let mut member = self.member.clone();
        member.settings.add("transport", transport);
        member.settings.add("secret", if self.secret.is_some() { "given" } else { "none" });
        member
    }
}

impl From<Member> for RendezvousConfig {
    fn from(member: Member) -> Self {
        let tcp = TcpConfig::default();
        Self { member, secret: None, store: None, interface: None, bind: None, ports: None, tcp }
    }
}

/// Returns an error if a rank has published a loopback address and another one has not. A host name
/// that resolves to 127.0.1.1 on its own host does that.
pub(crate) fn check_reach(members: &[Record]) -> Result<()> {
    let loopback = members.iter().position(|member| member.address.ip().is_loopback());
    let elsewhere = members.iter().position(|member| !member.address.ip().is_loopback());
    let (Some(here), Some(there)) = (loopback, elsewhere) else { return Ok(()) };
    let (ours, theirs) = (members[here].address, members[there].address);
    let loss = std::io::Error::new(
        std::io::ErrorKind::AddrNotAvailable,
        format!(
            "it listens on the loopback address {ours}, but rank {there} on {theirs}: give the store's address as \
             others see it, or choose an interface"
        ),
    );
    Err(Error::PeerLost { peer: here, during: During::Rendezvous, loss: Loss::Io(loss.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripes::Stripes;

    fn members(addresses: &[&str]) -> Vec<Record> {
        let member = |a: &&str| Record { process: 0, address: a.parse().unwrap(), stripes: Stripes::NONE };
        addresses.iter().map(member).collect()
    }

    #[test]
    fn a_rank_on_loopback_among_others_elsewhere_is_named() {
        assert!(check_reach(&members(&["127.0.0.1:1", "127.0.0.1:2"])).is_ok());
        assert!(check_reach(&members(&["10.0.0.1:1", "[fd00::1]:2"])).is_ok());
        let error = check_reach(&members(&["10.0.0.1:1", "127.0.0.1:2"])).unwrap_err();
        assert!(matches!(error, Error::PeerLost { peer: 1, .. }), "{error}");
        assert!(error.to_string().contains("10.0.0.1:1"), "{error}");
    }
}

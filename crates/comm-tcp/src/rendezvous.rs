//! The configuration of the rendezvous of ranks that use TCP.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use comm_core::{During, Error, Group, GroupId, Loss, Membership, Result};
use comm_rendezvous::Member;

use crate::config::TcpConfig;
use crate::protection::ProtectionConfig;
use crate::record::Record;
use crate::secret::Secret;
use crate::tls::Tls;

/// The identity of this rank, and the settings by which the others reach it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// The rank, and the ranks with which it forms a world.
    pub member: Member,
    /// The shared secret. A side that has one refuses a side that does not have the same one.
    pub secret: Option<Secret>,
    /// The address of the store, unless it is on this machine. The published address is the source
    /// address of packets to the store. If this is `None`, a loopback address is published, and all
    /// ranks must be on one machine.
    pub store: Option<SocketAddr>,
    /// The network interfaces whose addresses are published, in NCCL's syntax: `eth` for all whose
    /// names begin with it, `=eth0` for this one only, and `^docker,lo` for all others. Names are
    /// separated by commas.
    ///
    /// Channels are opened over the first one, which is an interface early in the list. Sockets
    /// that are added to a stream ([`TcpConfig::sockets_per_peer`]) also use the others, if they
    /// have addresses of the same family, up to eight in all. The rank listens on all of these
    /// addresses. With `bind` or `advertise` only one address is published.
    pub interface: Option<String>,
    /// The address to listen on. It is also published unless it is unspecified (`0.0.0.0`, `::`)
    /// or `advertise` is given. `None` means the address of the interface.
    pub bind: Option<IpAddr>,
    /// The address to publish instead, at which others reach this rank through a router that
    /// forwards the ports of `ports` unchanged.
    pub advertise: Option<IpAddr>,
    /// The range of ports from which the rank takes the first free one, starting at an offset that
    /// depends on the rank. Each rank of a host needs one. `None` lets the system choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// The configuration of the sockets of channels.
    pub tcp: TcpConfig,
}

impl RendezvousConfig {
    /// Returns the configuration of one rank of a world on one machine, with the default timeout of
    /// five minutes.
    #[must_use]
    pub fn new(membership: Membership) -> Self {
        Self::from(Member::new(membership))
    }

    pub(crate) fn protection(&self) -> ProtectionConfig {
        let (checksums, tls) = (self.tcp.checksums, self.tcp.tls_if_any());
        ProtectionConfig { secret: self.secret.clone(), checksums, tls }
    }

    /// Returns the group of all ranks, or an error if a setting is invalid.
    pub(crate) fn check(&self) -> Result<Group> {
        self.tcp.check()?;
        self.protection().check()?;
        Group::new(GroupId::WORLD, self.member.membership())
    }

    /// Returns the member with the settings that all ranks of this transport compare.
    #[must_use]
    pub fn member_over(&self, transport: &str) -> Member {
        let mut member = self.member.clone();
        member.settings.add("transport", transport);
        member.settings.add("secret", if self.secret.is_some() { "given" } else { "none" });
        member.settings.add("tls", tls_setting(self.tcp.tls_if_any().as_ref()));
        member.settings.add("full_mesh_max", self.tcp.full_mesh_max);
        member
    }
}

/// Returns the value of the setting that ranks compare.
fn tls_setting(tls: Option<&Tls>) -> &'static str {
    match tls {
        None => "none",
        Some(tls) if tls.has_certificates() => "certificates",
        Some(_) => "secret",
    }
}

impl From<Member> for RendezvousConfig {
    fn from(member: Member) -> Self {
        let tcp = TcpConfig::default();
        Self {
            member,
            secret: None,
            store: None,
            interface: None,
            bind: None,
            advertise: None,
            ports: None,
            tcp,
        }
    }
}

/// Returns an error if a rank has published a loopback address and another one has not. This
/// happens if a host name resolves to 127.0.1.1 on its own host.
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
    use comm_rendezvous::Processors;

    use super::*;

    fn members(addresses: &[&str]) -> Vec<Record> {
        let member = |a: &&str| Record {
            process: 0,
            processors: Processors::default(),
            address: a.parse().unwrap(),
            others: Vec::new(),
        };
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

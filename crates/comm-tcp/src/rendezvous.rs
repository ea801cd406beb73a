//! What ranks of TCP tell each other through a store, and must have alike.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use comm_core::{DEFAULT_TIMEOUT, During, Error, Group, GroupId, Loss, Membership, Result};
use comm_rendezvous::Settings;

use crate::config::TcpConfig;
use crate::record::{Malformed, Member};
use crate::secret::Secret;

/// Who this process is, whom it is to meet, and where the others find it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RendezvousConfig {
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// The job. Processes of other jobs are refused, and jobs may share a store.
    pub job: u64,
    /// Part of the name under which ranks meet: equal on all ranks that are to meet. Ranks that meet again need no other
    /// round.
    pub round: u64,
    /// The rank that serves the store, if one does. It is named when the store breaks.
    pub store_rank: Option<usize>,
    /// Settings that must be equal on all ranks, besides those of this transport.
    pub settings: Settings,
    /// The shared secret. A side that has one refuses a side that has not.
    pub secret: Option<Secret>,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Where the store is, unless it is on this machine. The address that the others are told is the one from which
    /// packets to the store leave. Without it, that address is loopback, and all ranks must be on one machine.
    pub store: Option<SocketAddr>,
    /// The network interfaces whose addresses may be told to the others, in NCCL's syntax: `eth` for all whose names
    /// begin like this, `=eth0` for exactly this one, `^docker,lo` for all others, and lists with commas.
    pub interface: Option<String>,
    /// The address to listen on. It is also told to the others unless it is unspecified (`0.0.0.0`, `::`). Without it,
    /// it is the address that the others are told.
    pub bind: Option<IpAddr>,
    /// The ports to listen on: the first of them that is free, beginning at this rank's place. Each rank of a host needs
    /// one. `None` lets the system choose.
    pub ports: Option<RangeInclusive<u16>>,
    /// How the sockets of lanes are set up.
    pub tcp: TcpConfig,
}

impl RendezvousConfig {
    /// One rank of a world on one machine, with the default timeout of five minutes.
    #[must_use]
    pub fn new(Membership { rank, size }: Membership) -> Self {
        Self {
            rank,
            world_size: size,
            job: 0,
            round: 0,
            store_rank: None,
            settings: Settings::default(),
            secret: None,
            timeout: DEFAULT_TIMEOUT,
            store: None,
            interface: None,
            bind: None,
            ports: None,
            tcp: TcpConfig::default(),
        }
    }

    /// The group of all ranks, if the settings can be used.
    pub(crate) fn check(&self) -> Result<Group> {
        self.tcp.congestion.check()?;
        Group::new(GroupId::WORLD, Membership { rank: self.rank, size: self.world_size })
    }

    /// What of this the ranks of every transport say.
    pub(crate) fn meeting(&self) -> comm_rendezvous::RendezvousConfig {
        let mut meeting =
            comm_rendezvous::RendezvousConfig::new(Membership { rank: self.rank, size: self.world_size });
        (meeting.job, meeting.round, meeting.timeout) = (self.job, self.round, self.timeout);
        meeting.store_rank = self.store_rank;
        meeting.settings.clone_from(&self.settings);
        meeting.settings.add("transport", "tcp");
        meeting.settings.add("secret", if self.secret.is_some() { "given" } else { "none" });
        meeting
    }
}

/// Reads what each rank told the others, in the order of ranks.
pub(crate) fn read(records: &[String]) -> Result<Vec<Member>> {
    let malformed =
        |text: &String| Error::malformed("the record of a rank in the store", format_args!("{text:?}"));
    let members: Vec<Member> = records
        .iter()
        .map(|text| text.parse().map_err(|Malformed| malformed(text)))
        .collect::<Result<_>>()?;
    check_reach(&members)?;
    Ok(members)
}

/// Refuses a rank that told the others its loopback address while others are elsewhere. A host name that resolves to
/// 127.0.1.1 on its own host does that.
fn check_reach(members: &[Member]) -> Result<()> {
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

    fn members(addresses: &[&str]) -> Vec<Member> {
        let member = |a: &&str| Member { process: 0, address: a.parse().unwrap(), stripes: Stripes::NONE };
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

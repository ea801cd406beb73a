//! The listeners and the record of a rank before the rendezvous.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use comm_core::{Error, Group, Result};
use comm_mesh::Mesh;
use comm_rendezvous::{Endpoint, Processors, Watch, random_bytes};
use socket2::Socket;

use crate::config::TcpConfig;
use crate::fabric::TcpFabric;
use crate::identity::Identity;
use crate::interface;
use crate::mesh::TcpProtocol;
use crate::protection::ProtectionConfig;
use crate::record::{ADDRESSES_MAX, Record};
use crate::rendezvous::{RendezvousConfig, check_reach};
use crate::socket::{self, Options};

/// The name of the setting in errors.
const PORTS: &str = "ports";

/// The listeners of one rank, before the rendezvous.
#[derive(Debug)]
pub struct TcpEndpoint {
    group: Group,
    config: TcpConfig,
    /// One for each published address.
    listeners: Vec<Socket>,
    job: u64,
    protection: ProtectionConfig,
    own: Record,
}

impl TcpEndpoint {
    /// Listens on a port of [`RendezvousConfig::ports`]. If several addresses are to be published,
    /// listens on the same port of each; an address where that port is in use is left out.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting cannot be used, for example because all ports are in use;
    /// [`Error::Io`] if a port cannot be bound.
    pub fn bind(config: &RendezvousConfig) -> Result<Self> {
        let group = config.check()?;
        let (listen, publish) = addresses(config)?;
        let options = Options::channel(&config.tcp, None);
        let listener = listen_in(config, listen, &options)?;
        let local = socket::local_address(&listener)?;
        if !config.protection().authenticates() && !local.ip().is_loopback() {
            tracing::warn!(
                rank = config.member.rank,
                %local,
                "no secret: anyone who can reach this address can take the place of another rank; \
                 set COMM_SECRET to the same random text on every rank"
            );
        }
        let (other_listeners, others): (Vec<_>, _) =
            listen_on_others(config, local, &options)?.into_iter().unzip();
        let address = SocketAddr::new(publish, local.port());
        let processors = Processors::of_this_thread();
        let own = Record { process: random_number()?, processors, address, others };
        let (job, protection) = (config.member.job, config.protection());
        let listeners = [listener].into_iter().chain(other_listeners).collect();
        Ok(Self { group, config: config.tcp.clone(), listeners, job, protection, own })
    }
}

/// Listens on the other interfaces of the configuration, if there are any.
fn listen_on_others(
    config: &RendezvousConfig,
    local: SocketAddr,
    options: &Options,
) -> Result<Vec<(Socket, SocketAddr)>> {
    let (Some(setting), None, None) = (&config.interface, config.bind, config.advertise) else {
        return Ok(Vec::new());
    };
    let mut listening = Vec::new();
    for ip in interface::others(setting, local.ip())?.into_iter().take(ADDRESSES_MAX - 1) {
        let address = SocketAddr::new(ip, local.port());
        match socket::listen(address, options) {
            Ok(listener) => listening.push((listener, address)),
            Err(error) => tracing::warn!(%address, %error, "an interface is not used"),
        }
    }
    Ok(listening)
}

impl Endpoint for TcpEndpoint {
    type Fabric = TcpFabric;

    fn record(&self) -> String {
        self.own.to_string()
    }

    /// # Errors
    /// [`Error::PeerLost`] for a rank whose address others cannot reach, [`Error::Malformed`] for
    /// text that is not a record, [`Error::Io`] if the system has no file descriptors left.
    fn connect(self, records: &[String], watch: Option<Arc<Watch>>) -> Result<TcpFabric> {
        let Self { group, config, listeners, job, protection, .. } = self;
        let members = comm_rendezvous::parse_records(records, Record::parse)?;
        check_reach(&members)?;
        let identity = Identity { rank: group.rank(), job, protection, members };
        Ok(TcpFabric::new(Mesh::new(group, TcpProtocol { identity, config }, listeners)?, watch))
    }
}

/// Listens on the first free port, starting at an offset by rank so that ranks of a host seldom try
/// the same one.
fn listen_in(config: &RendezvousConfig, ip: IpAddr, options: &Options) -> Result<Socket> {
    let Some(ports) = &config.ports else { return socket::listen(SocketAddr::new(ip, 0), options) };
    let (first, last) = (*ports.start(), *ports.end());
    let refused = |reason: String| Error::setting(PORTS, format!("{first}-{last}"), reason);
    if first == 0 || first > last {
        return Err(refused("it must be a range of ports from 1 to 65535, the lower one first".into()));
    }
    let count = usize::from(last - first) + 1;
    for at in 0..count {
        // It is less than `count`, so `first + offset` is at most `last`.
        let offset = ((config.member.rank % count + at) % count) as u16;
        match socket::listen(SocketAddr::new(ip, first + offset), options) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {}
            listener => return listener,
        }
    }
    Err(refused(format!("all {count} ports are in use on {ip}; each rank of a host needs one")))
}

/// Returns the address to listen on and the address to publish.
fn addresses(config: &RendezvousConfig) -> Result<(IpAddr, IpAddr)> {
    if let Some(unspecified) = config.advertise.filter(IpAddr::is_unspecified) {
        return Err(Error::setting("advertise", unspecified.to_string(), "no other host can connect to it"));
    }
    let own = match config.bind.filter(|bind| !bind.is_unspecified()) {
        Some(bind) => bind,
        None => interface::choose(config.interface.as_deref(), config.store)?,
    };
    Ok((config.bind.unwrap_or(own), config.advertise.unwrap_or(own)))
}

fn random_number() -> Result<u64> {
    random_bytes().map(u64::from_ne_bytes).map_err(|e| Error::io("draw a random number", e))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::ops::RangeInclusive;

    use comm_core::Membership;

    use super::*;

    #[test]
    fn the_advertised_address_is_published_and_must_be_one_of_a_host() {
        let advertise = |text: &str| {
            let mut config = RendezvousConfig::new(Membership { rank: 0, size: 2 });
            config.advertise = Some(text.parse().unwrap());
            TcpEndpoint::bind(&config)
        };
        assert_eq!(advertise("192.0.2.1").unwrap().own.address.ip().to_string(), "192.0.2.1");
        for unspecified in ["0.0.0.0", "::"] {
            let message = advertise(unspecified).unwrap_err().to_string();
            assert!(message.contains("advertise") && message.contains(unspecified), "{message}");
        }
    }

    fn bind(rank: usize, ports: RangeInclusive<u16>) -> Result<TcpEndpoint> {
        let mut config = RendezvousConfig::new(Membership { rank, size: 1000 });
        config.ports = Some(ports);
        TcpEndpoint::bind(&config)
    }

    /// Returns consecutive ports that are free now.
    fn free(count: u16) -> RangeInclusive<u16> {
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        // Below the ephemeral ports, and different in each process.
        let start = 20_000 + 5 * (std::process::id() % 2_000) as u16;
        let first = (start..).find(|first| (*first..first + count).all(is_free)).unwrap();
        first..=first + count - 1
    }

    #[test]
    fn ranks_of_a_host_share_a_range_of_ports_until_it_is_full() {
        let ports = free(5);
        // Ranks 3 and 8 begin at the same port.
        let ranks = [3, 8, 0, 13, 4];
        let bound: Vec<TcpEndpoint> = ranks.iter().map(|rank| bind(*rank, ports.clone()).unwrap()).collect();
        let mut taken: Vec<u16> = bound.iter().map(|endpoint| endpoint.own.address.port()).collect();
        assert_eq!(taken[0], ports.start() + 3);
        taken.sort_unstable();
        assert_eq!(taken, ports.clone().collect::<Vec<_>>());
        let message = bind(0, ports.clone()).unwrap_err().to_string();
        let range = format!("{}-{}", ports.start(), ports.end());
        assert!(message.contains(&range) && message.contains("all 5 ports"), "{message}");
        drop(bound);
        assert_eq!(bind(0, ports.clone()).unwrap().own.address.port(), *ports.start());
    }

    #[test]
    fn a_range_without_ports_is_refused() {
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        for ports in [0..=5, 5..=4, 0..=0] {
            let error = bind(0, ports).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("ports"), "{error}");
        }
    }

    #[test]
    fn the_highest_port_belongs_to_a_range() {
        let range = 65_534..=65_535;
        // Another program may be using them.
        if let Ok(endpoint) = bind(1, range.clone()) {
            assert!(range.contains(&endpoint.own.address.port()));
        }
    }
}

//! Chooses the address of this machine that the other ranks connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use comm_core::{Error, Result};
use if_addrs::IfOperStatus;

/// The name of the setting in errors.
const SETTING: &str = "interface";

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    interface: String,
    ip: IpAddr,
    is_up: bool,
}

/// A filter of interfaces in NCCL's syntax: a list of prefixes of names, separated by commas. `=`
/// before the list matches whole names, `^` all other interfaces.
#[derive(Debug, PartialEq, Eq)]
struct Filter<'a> {
    names: Vec<&'a str>,
    exact: bool,
    exclude: bool,
}

impl<'a> Filter<'a> {
    fn parse(setting: &'a str) -> Result<Self> {
        let (exclude, rest) = strip(setting.trim(), '^');
        let (exact, rest) = strip(rest, '=');
        let names: Vec<&str> = rest.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Err(Error::setting(SETTING, setting, "it names no interface"));
        }
        Ok(Self { names, exact, exclude })
    }

    /// Returns the index of the entry that matches an interface, `None` if it is not accepted.
    fn rank(&self, interface: &str) -> Option<usize> {
        let matches =
            |name: &&str| if self.exact { interface == *name } else { interface.starts_with(*name) };
        let position = self.names.iter().position(matches);
        match (self.exclude, position) {
            (false, position) => position,
            (true, Some(_)) => None,
            (true, None) => Some(0),
        }
    }
}

fn strip(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

/// Returns the address to publish: that of an interface with one of the names, or else the source
/// address of packets to `peer`. Without a peer it is the loopback address, because all ranks are
/// then on this machine.
pub(crate) fn choose(interfaces: Option<&str>, peer: Option<SocketAddr>) -> Result<IpAddr> {
    let ip = match (interfaces, peer) {
        (Some(setting), _) => select(setting, &candidates()?, peer)?,
        (None, Some(peer)) => source_towards(peer)?,
        (None, None) => Ipv4Addr::LOCALHOST.into(),
    };
    if ip.is_loopback() && peer.is_some_and(|peer| !is_ours(peer.ip())) {
        let reason = format!(
            "other ranks cannot reach the loopback address {ip}, and the store at {} is on another machine; \
             this machine has {}",
            peer.map(|peer| peer.to_string()).unwrap_or_default(),
            list(&candidates()?)
        );
        return Err(Error::setting(SETTING, interfaces.unwrap_or_default(), reason));
    }
    Ok(ip)
}

/// Returns the addresses of the other interfaces of a list at which this rank may be reached, if
/// `chosen` is its address of the list: one of each interface, in the order of the list, and of the
/// same family.
pub(crate) fn others(setting: &str, chosen: IpAddr) -> Result<Vec<IpAddr>> {
    others_among(setting, &candidates()?, chosen)
}

fn others_among(setting: &str, candidates: &[Candidate], chosen: IpAddr) -> Result<Vec<IpAddr>> {
    let filter = Filter::parse(setting)?;
    let mut others: Vec<(usize, &Candidate)> = candidates
        .iter()
        .filter(|other| other.is_up && !other.ip.is_loopback() && !chosen.is_loopback())
        .filter(|other| other.ip.is_ipv4() == chosen.is_ipv4())
        .filter_map(|other| Some((filter.rank(&other.interface)?, other)))
        .collect();
    // Stable, so that addresses of an interface keep their order.
    others.sort_by_key(|(rank, _)| *rank);
    let mut used: Vec<&str> =
        candidates.iter().filter(|own| own.ip == chosen).map(|own| own.interface.as_str()).collect();
    others.retain(|(_, other)| {
        let is_new = !used.contains(&other.interface.as_str());
        used.push(&other.interface);
        is_new
    });
    Ok(others.into_iter().map(|(_, other)| other.ip).collect())
}

/// Returns the address at which other hosts reach this one: the source address of the default
/// route, or else that of the first interface that is up and not loopback. `None` if there is no
/// such interface. Nothing is sent.
#[must_use]
pub fn outward_address() -> Option<IpAddr> {
    // Addresses reserved for documentation, to which the default route leads.
    const ELSEWHERE: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
    let routed = ELSEWHERE.into_iter().filter_map(|ip| source_towards(SocketAddr::new(ip, 9)).ok());
    let own = candidates().unwrap_or_default().into_iter();
    let own = own.filter(|candidate| candidate.is_up).map(|candidate| candidate.ip);
    routed.chain(own).find(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Returns the addresses at which other hosts may reach this one, the best first. `interfaces` is a
/// filter in the syntax of [`RendezvousConfig::interface`](crate::RendezvousConfig::interface);
/// without one, loopback is left out. Nothing is sent.
///
/// # Errors
/// [`Error::Invalid`] if the filter is malformed or no interface matches, and [`Error::Io`] if the
/// interfaces cannot be listed.
pub fn own_addresses(interfaces: Option<&str>) -> Result<Vec<IpAddr>> {
    let candidates = candidates()?;
    let Some(setting) = interfaces else {
        let own = candidates.into_iter().map(|candidate| candidate.ip).filter(|ip| !ip.is_loopback());
        let mut addresses: Vec<IpAddr> = outward_address().into_iter().collect();
        addresses.extend(own.filter(|ip| Some(*ip) != addresses.first().copied()).collect::<Vec<_>>());
        return Ok(addresses);
    };
    let best = select(setting, &candidates, None)?;
    let filter = Filter::parse(setting)?;
    let accepted = candidates.iter().filter(|candidate| filter.rank(&candidate.interface).is_some());
    let others = accepted.map(|candidate| candidate.ip).filter(|ip| *ip != best);
    Ok([best].into_iter().chain(others).collect())
}

/// Returns the source address of packets to `peer`. Nothing is sent.
fn source_towards(peer: SocketAddr) -> Result<IpAddr> {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let source = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(peer)?;
        Ok(socket.local_addr()?.ip())
    };
    source().map_err(|e| Error::io(format!("find a route to {peer}"), e))
}

/// Whether an address belongs to this machine, in which case packets to it also come from it.
fn is_ours(ip: IpAddr) -> bool {
    ip.is_loopback()
        || ip.is_unspecified()
        || source_towards(SocketAddr::new(ip, 9)).is_ok_and(|source| source == ip)
}

/// Returns the addresses of interfaces, except link-local ones and addresses of interfaces that are
/// certainly down.
fn candidates() -> Result<Vec<Candidate>> {
    let all = if_addrs::get_if_addrs().map_err(|e| Error::io("list the network interfaces", e))?;
    let usable = all.into_iter().filter(|i| i.oper_status != IfOperStatus::Down && !i.is_link_local());
    Ok(usable.map(|i| Candidate { ip: i.ip(), is_up: i.is_oper_up(), interface: i.name }).collect())
}

/// Returns the best acceptable address, which is, in order of importance, not loopback, early in
/// the list, of the peer's family, and IPv4.
fn select(setting: &str, candidates: &[Candidate], peer: Option<SocketAddr>) -> Result<IpAddr> {
    let filter = Filter::parse(setting)?;
    let badness = |candidate: &Candidate| {
        let rank = filter.rank(&candidate.interface)?;
        let ip = candidate.ip;
        let other_family = peer.is_some_and(|peer| peer.is_ipv4() != ip.is_ipv4());
        Some((ip.is_loopback(), rank, other_family, ip.is_ipv6()))
    };
    let acceptable = candidates.iter().filter_map(|candidate| Some((badness(candidate)?, candidate.ip)));
    acceptable.min_by_key(|(badness, _)| *badness).map(|(_, ip)| ip).ok_or_else(|| {
        Error::setting(
            SETTING,
            setting,
            format!("no interface matches; this machine has {}", list(candidates)),
        )
    })
}

/// Lists addresses, as in `lo (127.0.0.1), eth0 (10.0.0.1)`.
fn list(candidates: &[Candidate]) -> String {
    let names: Vec<_> = candidates.iter().map(|c| format!("{} ({})", c.interface, c.ip)).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Candidate> {
        let addresses = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "2001:db8::1"),
            ("eth0", "10.0.0.1"),
            ("eth10", "10.0.1.1"),
            ("ib0", "10.1.0.1"),
        ];
        addresses
            .map(|(interface, ip)| Candidate {
                interface: interface.into(),
                ip: ip.parse().unwrap(),
                is_up: true,
            })
            .to_vec()
    }

    fn selected(setting: &str, peer: Option<&str>) -> String {
        let peer = peer.map(|peer| peer.parse().unwrap());
        select(setting, &machine(), peer).map_or_else(|e| e.to_string(), |ip| ip.to_string())
    }

    #[test]
    fn other_hosts_are_told_no_loopback_address_unless_it_is_chosen() {
        let all = own_addresses(None).unwrap();
        assert_eq!(all.first().copied(), outward_address());
        assert!(all.iter().all(|ip| !ip.is_loopback()), "{all:?}");
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        let lo = own_addresses(Some("=lo")).unwrap();
        assert!(lo[0] == Ipv4Addr::LOCALHOST && lo.iter().all(IpAddr::is_loopback), "{lo:?}");
        assert!(own_addresses(Some("=none")).unwrap_err().to_string().contains("no interface matches"));
    }

    #[test]
    fn the_syntax_is_nccls() {
        assert_eq!(selected("eth", None), "10.0.0.1");
        assert_eq!(selected("=eth10", None), "10.0.1.1");
        assert_eq!(selected("eth1", None), "10.0.1.1");
        assert_eq!(selected("ib,eth", None), "10.1.0.1");
        assert_eq!(selected("eth,ib", None), "10.0.0.1");
        assert_eq!(selected("^docker,eth", None), "10.1.0.1");
        assert_eq!(selected("^=docker0,eth0", None), "10.0.1.1");
        assert_eq!(selected("lo", None), "127.0.0.1");
    }

    #[test]
    fn other_interfaces_of_a_list_are_used_with_an_address_each() {
        let others = |setting: &str, chosen: &str| {
            let mut machine = machine();
            machine.extend(machine[5..].to_vec());
            let others = others_among(setting, &machine, chosen.parse().unwrap()).unwrap();
            others.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(others("eth", "10.0.0.1"), "10.0.1.1");
        assert_eq!(others("=ib0,eth0,eth10", "10.1.0.1"), "10.0.0.1 10.0.1.1");
        assert_eq!(others("^docker", "10.0.0.1"), "10.0.1.1 10.1.0.1");
        // No other one has an IPv6 address.
        assert_eq!(others("eth,ib", "2001:db8::1"), "");
        assert_eq!(others("=eth0", "10.0.0.1"), "");
        // All ranks are on this machine.
        assert_eq!(others("lo,docker", "127.0.0.1"), "");
    }

    #[test]
    fn the_peers_family_decides_between_addresses_of_an_interface() {
        assert_eq!(selected("=eth0", Some("[2001:db8::2]:1")), "2001:db8::1");
        assert_eq!(selected("=eth0", Some("10.0.0.2:1")), "10.0.0.1");
        assert_eq!(selected("=ib0", Some("[2001:db8::2]:1")), "10.1.0.1");
    }

    #[test]
    fn an_error_lists_the_interfaces() {
        let error = selected("=eth", None);
        assert!(error.contains("docker0 (172.17.0.1), eth0 (2001:db8::1), eth0 (10.0.0.1)"), "{error}");
        assert!(selected("^", None).contains("names no interface"));
        assert!(selected(" , ", None).contains("names no interface"));
    }

    #[test]
    fn the_route_decides_where_nothing_is_set() {
        let towards = |peer: &str| choose(None, Some(peer.parse().unwrap())).unwrap();
        assert!(towards("127.0.0.1:1").is_loopback());
        assert!(towards("127.0.1.1:1").is_loopback());
        assert!(choose(None, None).unwrap().is_loopback());
    }

    #[test]
    fn loopback_is_refused_when_the_store_is_elsewhere() {
        let elsewhere = "198.51.100.1:29500".parse().unwrap();
        let error = choose(Some("lo"), Some(elsewhere)).unwrap_err().to_string();
        assert!(error.contains("another machine") && error.contains("lo (127.0.0.1)"), "{error}");
        assert!(choose(Some("lo"), Some("127.0.0.1:1".parse().unwrap())).is_ok());
    }
}

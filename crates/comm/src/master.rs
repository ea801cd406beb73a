//! The addresses of the store: those that clients try, those on which rank 0 listens, and the one
//! that it advertises.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use comm_core::{Error, Result};
use comm_tcp::{StoreConfig, TcpStoreServer, outward_address};

const ADDR: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";

/// The host that serves the store, as this rank sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// The name of the host as configured.
    name: String,
    /// Its addresses in the system's order of preference; never empty.
    addresses: Vec<SocketAddr>,
}

impl Master {
    /// Resolves a host name within a time limit. A lookup that takes longer continues on its own
    /// thread, and its result is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name has no address, [`Error::Io`] if the time limit expires.
    pub fn resolve(name: &str, port: u16, within: Duration) -> Result<Self> {
        let host = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Self { name: name.to_owned(), addresses: vec![SocketAddr::new(ip, port)] });
        }
        Self::resolve_by(name, within, move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))
    }

    fn resolve_by(
        name: &str,
        within: Duration,
        look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> Result<Self> {
        let wrong = |reason: String| Error::setting(ADDR, name, reason);
        let (sender, receiver) = mpsc::channel();
        // Sending fails if the time limit has expired.
        let look_up = move || drop(sender.send(look_up()));
        let thread = thread::Builder::new().name("comm-resolve".into()).spawn(look_up);
        thread.map_err(|error| Error::io("start the thread that resolves MASTER_ADDR", error))?;
        let Ok(found) = receiver.recv_timeout(within) else {
            let doing = format!("resolve {ADDR} = {name:?} within {within:?}");
            return Err(Error::io(doing, io::Error::new(io::ErrorKind::TimedOut, "no answer")));
        };
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in
            found.map_err(|error| wrong(format!("rank 0's host name cannot be resolved: {error}")))?
        {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(wrong("the name has no address".into()));
        }
        Ok(Self { name: name.to_owned(), addresses })
    }

    /// Creates the master with these addresses, at least one.
    pub(crate) fn at(addresses: Vec<SocketAddr>) -> Self {
        let name = addresses.first().map_or_else(String::new, |address| address.ip().to_string());
        Self { name, addresses }
    }

    /// Returns the addresses of the store; any of them may answer.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves the store on this host.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `MASTER_ADDR` if the master is another host, or `MASTER_PORT` if
    /// the port is taken.
    pub fn serve(&self, config: &StoreConfig) -> Result<TcpStoreServer> {
        let port = self.addresses.first().map_or(0, SocketAddr::port);
        for ip in self.listen_on(|ip| TcpListener::bind((ip, 0)).is_ok()) {
            match TcpStoreServer::bind(SocketAddr::new(ip, port), config.clone()) {
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                    return Err(in_use(ip, port));
                }
                // The address is not one of this host, or the system does not support its family.
                Err(error) if is_unavailable(&error) => {}
                other => return other,
            }
        }
        let reason = "it is not an address of this host, on which rank 0 runs; set it to the host of rank 0";
        Err(Error::setting(ADDR, &self.name, reason))
    }

    /// Returns the addresses to try to listen on, in this order, until one succeeds.
    ///
    /// A name that is loopback here may be a real address elsewhere (Debian maps a host's own name
    /// to 127.0.1.1), and a name with several addresses may be reached by any of them. The store
    /// then listens on all addresses of this host.
    fn listen_on(&self, is_ours: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        let ips: Vec<IpAddr> = self.addresses.iter().map(SocketAddr::ip).collect();
        if self.is_local_only() || matches!(ips[..], [only] if !only.is_loopback()) {
            return ips;
        }
        let mut ours = ips.into_iter().filter(|ip| is_ours(*ip));
        match (ours.next(), ours.next()) {
            (None, _) => Vec::new(),
            (Some(only), None) if !only.is_loopback() => vec![only],
            _ => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        }
    }

    /// Returns whether the master is a loopback address or `localhost`, which every process
    /// resolves to its own host.
    pub fn is_local_only(&self) -> bool {
        let host = self.name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let is_localhost = host.eq_ignore_ascii_case("localhost") || host.ends_with(".localhost");
        is_localhost || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns the address of the store as other hosts see it, given the address that this rank is
    /// connected to. It determines which of its addresses a rank advertises.
    pub(crate) fn seen_by_others(&self, connected: SocketAddr) -> SocketAddr {
        if !connected.ip().is_loopback() || self.is_local_only() {
            return connected;
        }
        let named = self.addresses.iter().map(SocketAddr::ip).find(|ip| !ip.is_loopback());
        let ip = named.or_else(outward_address).unwrap_or(connected.ip());
        SocketAddr::new(ip, connected.port())
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, port {}", self.name, self.addresses.first().map_or(0, SocketAddr::port))
    }
}

fn is_unavailable(error: &Error) -> bool {
    let Error::Io { source, .. } = error else { return false };
    // Linux's EAFNOSUPPORT has no `ErrorKind`.
    source.kind() == io::ErrorKind::AddrNotAvailable || source.raw_os_error() == Some(EAFNOSUPPORT)
}

/// The error number for an unsupported address family.
const EAFNOSUPPORT: i32 = 97;

fn in_use(ip: IpAddr, port: u16) -> Error {
    let reason = format!(
        "rank 0 cannot listen on {}: the port is in use on this host; set a free port on every rank, or start the \
         program with `commctl run`, which chooses one",
        SocketAddr::new(ip, port)
    );
    Error::setting(PORT, port.to_string(), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(name: &str, addresses: &[&str]) -> Master {
        let addresses = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 29_500)).collect();
        Master { name: name.to_owned(), addresses }
    }

    fn listens_on(name: &str, addresses: &[&str], ours: &[&str]) -> Vec<String> {
        let is_ours = |ip: IpAddr| ip.is_loopback() || ours.contains(&ip.to_string().as_str());
        master(name, addresses).listen_on(is_ours).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rank_0_listens_where_the_others_reach_it() {
        let all = ["::", "0.0.0.0"];
        assert_eq!(listens_on("10.0.0.1", &["10.0.0.1"], &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(listens_on("127.0.0.1", &["127.0.0.1"], &[]), ["127.0.0.1"]);
        assert_eq!(listens_on("[::1]", &["::1"], &[]), ["::1"]);
        assert_eq!(listens_on("localhost", &["::1", "127.0.0.1"], &[]), ["::1", "127.0.0.1"]);
        // As on Debian: other hosts see another address.
        assert_eq!(listens_on("node1", &["127.0.1.1"], &[]), all);
        assert_eq!(listens_on("node1", &["127.0.1.1", "10.0.0.1"], &["10.0.0.1"]), all);
        assert_eq!(listens_on("node1", &["10.0.0.1"], &["10.0.0.1"]), ["10.0.0.1"]);
        assert_eq!(listens_on("node1", &["10.0.0.1", "fd00::1"], &["10.0.0.1", "fd00::1"]), all);
        assert_eq!(listens_on("node1", &["10.0.0.1", "fd00::1"], &["fd00::1"]), ["fd00::1"]);
        assert!(listens_on("node2", &["10.0.0.2", "fd00::2"], &["10.0.0.1"]).is_empty());
    }

    #[test]
    fn loopback_is_not_advertised_if_the_masters_name_is_another_address() {
        let seen = |name: &str, addresses: &[&str]| {
            let master = master(name, addresses);
            master.seen_by_others(master.addresses[0]).ip()
        };
        let ip = |ip: &str| ip.parse::<IpAddr>().unwrap();
        assert_eq!(seen("127.0.0.1", &["127.0.0.1"]), ip("127.0.0.1"));
        assert_eq!(seen("localhost", &["::1"]), ip("::1"));
        assert_eq!(seen("node1", &["10.0.0.1"]), ip("10.0.0.1"));
        assert_eq!(seen("node1", &["127.0.1.1", "10.0.0.1"]), ip("10.0.0.1"));
        assert_eq!(seen("node1", &["127.0.1.1"]), outward_address().unwrap_or(ip("127.0.1.1")));
    }

    #[test]
    fn a_name_that_is_loopback_here_is_served_to_other_hosts_too() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut master = master("node1", &["127.0.1.1"]);
        master.addresses[0].set_port(port);
        let server = master.serve(&StoreConfig::default()).unwrap();
        assert!(server.local_addr().ip().is_unspecified());
        for ip in ["127.0.1.1".parse().unwrap()].into_iter().chain(outward_address()) {
            let address = SocketAddr::new(ip, port);
            comm_tcp::TcpStore::connect(address, StoreConfig::default(), Duration::from_secs(30)).unwrap();
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named_by_its_variable() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let master = Master::resolve("127.0.0.1", port, Duration::from_secs(5)).unwrap();
        let message = master.serve(&StoreConfig::default()).unwrap_err().to_string();
        assert!(message.contains("MASTER_PORT") && message.contains(&port.to_string()), "{message}");
        assert!(message.contains("in use") && message.contains("commctl run"), "{message}");
    }

    #[test]
    fn a_master_elsewhere_is_named_by_its_variable() {
        // An address of the documentation range, and a name with addresses of other hosts only.
        for master in
            [master("198.51.100.1", &["198.51.100.1"]), master("n", &["198.51.100.1", "198.51.100.2"])]
        {
            let message = master.serve(&StoreConfig::default()).unwrap_err().to_string();
            assert!(message.contains("MASTER_ADDR") && message.contains(&master.name), "{message}");
        }
    }

    #[test]
    fn addresses_need_no_look_up() {
        for (name, ip) in [("10.0.0.1", "10.0.0.1"), ("[fd00::1]", "fd00::1"), ("fd00::1", "fd00::1")] {
            let master = Master::resolve(name, 5, Duration::ZERO).unwrap();
            assert_eq!(master.addresses, [SocketAddr::new(ip.parse().unwrap(), 5)]);
        }
    }

    #[test]
    fn a_name_without_address_is_invalid() {
        let error = Master::resolve("no.such.host.invalid", 1, Duration::from_secs(60)).unwrap_err();
        assert!(!error.is_fatal() && error.to_string().contains("MASTER_ADDR"), "{error}");
        let empty = Master::resolve_by("empty", Duration::from_secs(60), || Ok(Vec::new())).unwrap_err();
        assert!(empty.to_string().contains("MASTER_ADDR"), "{empty}");
    }

    #[test]
    fn a_look_up_ends_with_the_deadline() {
        let (release, released) = mpsc::channel::<()>();
        let slow = move || {
            // The thread ends with the test.
            let _ = released.recv();
            Ok(Vec::new())
        };
        let error = Master::resolve_by("slow", Duration::from_millis(50), slow).unwrap_err();
        assert!(matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::TimedOut));
        assert!(error.to_string().contains("MASTER_ADDR = \"slow\""), "{error}");
        drop(release);
    }

    #[test]
    fn every_address_of_a_name_is_kept_once() {
        let twice = || {
            Ok(vec!["10.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap(), "10.0.0.1:1".parse().unwrap()])
        };
        let master = Master::resolve_by("n", Duration::from_secs(60), twice).unwrap();
        assert_eq!(master.addresses.len(), 2);
    }
}

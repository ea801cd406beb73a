//! Sets the congestion control of sockets.
//!
//! It is set before a socket connects or listens: a connection that was established under BBR stays
//! paced even if another algorithm is set later.

use std::io;
use std::net::SocketAddr;

use comm_core::{Error, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Congestion;
use crate::socket::stays_on_this_machine;

impl Congestion {
    /// Sets the algorithm of a socket that is about to connect to an address, or to listen:
    /// accepted connections inherit it from their listener.
    pub(crate) fn set(&self, socket: &Socket, to: Option<SocketAddr>) -> io::Result<()> {
        match self {
            Self::Auto if to.is_none_or(is_on_this_machine) => disable_pacing(socket),
            Self::Auto | Self::System => {}
            Self::Named(name) => socket.set_tcp_congestion(name.as_bytes())?,
        }
        Ok(())
    }

    /// Sets the algorithm of an accepted connection. A connection from another machine gets the
    /// default of the system, unless its route specifies another one.
    pub(crate) fn after_accept(&self, socket: &Socket, listener: &Socket) {
        if *self != Self::Auto || stays_on_this_machine(socket) {
            return;
        }
        if let Err(error) = return_to_system(socket, listener) {
            tracing::debug!(%error, "a connection keeps the congestion control of its listener");
        }
    }

    /// Returns an error if the kernel refuses the algorithm, before other ranks wait for this one.
    pub(crate) fn check(&self) -> Result<()> {
        let Self::Named(name) = self else { return Ok(()) };
        let set = fresh(Type::STREAM, Domain::IPV4).and_then(|s| s.set_tcp_congestion(name.as_bytes()));
        set.map_err(|e| Error::setting("congestion", name, e))
    }
}

/// Sets the first congestion control without pacing that the system allows. If it allows none, only
/// speed suffers.
fn disable_pacing(socket: &Socket) {
    let set = [&b"cubic"[..], b"reno"].into_iter().any(|name| socket.set_tcp_congestion(name).is_ok());
    if !set {
        tracing::debug!("neither cubic nor reno is allowed: keeping the system's congestion control");
    }
}

fn return_to_system(socket: &Socket, listener: &Socket) -> io::Result<()> {
    let own = socket.tcp_congestion()?;
    if own != listener.tcp_congestion()? {
        return Ok(());
    }
    let system = fresh(Type::STREAM, Domain::IPV4)?.tcp_congestion()?;
    if own == system { Ok(()) } else { socket.set_tcp_congestion(name_in(&system)) }
}

/// The kernel pads names with zeros.
fn name_in(padded: &[u8]) -> &[u8] {
    padded.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether packets to an address stay on this machine, by their source address.
fn is_on_this_machine(address: SocketAddr) -> bool {
    let probe = || {
        let socket = fresh(Type::DGRAM, Domain::for_address(address))?;
        // Connecting a datagram socket sends nothing.
        socket.connect(&address.into())?;
        Ok::<_, io::Error>(socket)
    };
    probe().is_ok_and(|socket| stays_on_this_machine(&socket))
}

fn fresh(kind: Type, domain: Domain) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    Socket::new(domain, kind, Some(protocol))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::PollFlags;

    use super::*;
    use crate::config::TcpConfig;
    use crate::socket::{self, Options};

    fn name(socket: &Socket) -> String {
        String::from_utf8(name_in(&socket.tcp_congestion().unwrap()).to_vec()).unwrap()
    }

    fn system() -> String {
        name(&fresh(Type::STREAM, Domain::IPV4).unwrap())
    }

    /// Returns an algorithm that is not the system's, if this process may use one.
    fn other() -> Option<String> {
        let socket = fresh(Type::STREAM, Domain::IPV4).unwrap();
        let allowed = |name: &&str| socket.set_tcp_congestion(name.as_bytes()).is_ok();
        ["reno", "cubic"].into_iter().filter(|name| *name != system()).find(allowed).map(str::to_owned)
    }

    /// Returns the listener, and both ends of a connection that was just established.
    fn connect(congestion: Congestion) -> [Socket; 3] {
        let options = Options::channel(&TcpConfig { congestion, ..TcpConfig::default() }, None);
        let listener = socket::listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let address = socket::local_address(&listener).unwrap();
        let near = socket::start_connect(address, &options).unwrap();
        let soon = Instant::now() + Duration::from_secs(10);
        assert!(comm_mesh::wait_for(&listener, PollFlags::IN, soon).unwrap());
        let far = socket::accept(&listener).unwrap().unwrap().0;
        [listener, near, far]
    }

    #[test]
    fn a_connection_is_established_with_the_configured_control() {
        assert!(connect(Congestion::System).iter().all(|socket| name(socket) == system()));
        for wanted in other().into_iter().chain([system()]) {
            let sockets = connect(Congestion::Named(wanted.clone()));
            assert_eq!(sockets.each_ref().map(name), [&*wanted; 3]);
        }
        let [listener, near, far] = connect(Congestion::Auto);
        // One of the two is allowed everywhere, or is the system's.
        assert!(["cubic", "reno"].contains(&&*name(&listener)), "{}", name(&listener));
        assert_eq!([name(&near), name(&far)], [name(&listener), name(&listener)]);
        Congestion::Auto.after_accept(&far, &listener);
        assert_eq!(name(&far), name(&listener), "it stays on this machine");
    }

    #[test]
    fn a_control_inherited_from_the_listener_is_replaced_by_the_systems() {
        let Some(other) = other() else { return };
        let [listener, _near, far] = connect(Congestion::Named(other.clone()));
        return_to_system(&far, &listener).unwrap();
        assert_eq!(name(&far), system());

        let [listener, _near, far] = connect(Congestion::System);
        far.set_tcp_congestion(other.as_bytes()).unwrap();
        return_to_system(&far, &listener).unwrap();
        assert_eq!(name(&far), other, "that is its route's");
    }

    #[test]
    fn only_a_known_control_can_be_configured() {
        assert!(Congestion::Named(system()).check().is_ok());
        assert!(Congestion::Named("nothing".into()).check().is_err());
        assert!(Congestion::Auto.check().is_ok() && Congestion::System.check().is_ok());
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        let stays = |address: &str| is_on_this_machine(address.parse().unwrap());
        assert!(stays("127.0.0.1:1") && stays("127.1.2.3:1"));
        assert!(fresh(Type::DGRAM, Domain::IPV6).is_err() || stays("[::ffff:127.0.0.1]:1"));
        // An address reserved for documentation, which no machine has; packets to it have a source
        // address of this machine.
        let elsewhere: SocketAddr = "198.51.100.1:1".parse().unwrap();
        assert!(!is_on_this_machine(elsewhere));
        let socket = fresh(Type::DGRAM, Domain::IPV4).unwrap();
        if socket.connect(&elsewhere.into()).is_ok() {
            assert!(is_on_this_machine(socket.local_addr().unwrap().as_socket().unwrap()));
        }
    }
}

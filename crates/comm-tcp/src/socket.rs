//! Creates sockets and sets their options.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use comm_core::{Error, Result, simulation};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::config::{Congestion, TcpConfig};
use crate::keepalive::Keepalive;

/// The maximum number of connections that wait to be accepted. The system's own limit may be lower.
const BACKLOG: i32 = 4096;

/// The options of a socket.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    send_buffer: Option<usize>,
    recv_buffer: Option<usize>,
    congestion: Congestion,
    keepalive: Option<Keepalive>,
    user_timeout: Option<Duration>,
}

impl Options {
    /// The options of a server's connections to the clients of a store, which may be slow to read
    /// a response.
    pub(crate) fn store_server(keepalive_timeout: Option<Duration>) -> Self {
        Self {
            send_buffer: None,
            recv_buffer: None,
            congestion: Congestion::Auto,
            keepalive: keepalive_timeout.map(Keepalive::new),
            user_timeout: None,
        }
    }

    /// The options of a client's connections to the server of a store, which reads every request
    /// at once.
    pub(crate) fn store_client(keepalive_timeout: Option<Duration>) -> Self {
        let options = Self::store_server(keepalive_timeout);
        let user_timeout = options.keepalive.as_ref().map(Keepalive::silence_max);
        Self { user_timeout, ..options }
    }

    /// The options of the sockets of a channel, or of a listener.
    pub(crate) fn channel(config: &TcpConfig, keepalive: Option<Keepalive>) -> Self {
        let at_least = |bytes: usize| bytes.max(TcpConfig::BUFFER_BYTES_MIN);
        Self {
            send_buffer: config.send_buffer.map(at_least),
            recv_buffer: config.recv_buffer.map(at_least),
            congestion: config.congestion.clone(),
            keepalive,
            user_timeout: None,
        }
    }

    /// Sets the buffers, before a socket connects or listens: the receive buffer determines the
    /// window scale.
    fn set_buffers(&self, socket: &Socket) -> io::Result<()> {
        if let Some(bytes) = self.recv_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        self.send_buffer.map_or(Ok(()), |bytes| socket.set_send_buffer_size(bytes))
    }

    /// Sets the options of a connected socket. An accepted socket inherits buffers from its
    /// listener, which may have other options.
    ///
    /// A connection within this machine is not probed: the machine cannot lose itself, and the
    /// probes of hundreds of ranks, which are due at the same times, overflow the kernel's queue,
    /// so that connections of live processes break.
    pub(crate) fn apply(&self, socket: &Socket) -> io::Result<()> {
        if simulation::simulated().is_some() {
            return Ok(());
        }
        self.set_buffers(socket)?;
        socket.set_tcp_nodelay(true)?;
        if stays_on_this_machine(socket) { Ok(()) } else { self.probe(socket) }
    }

    /// Makes the kernel break the connection if the other host does not answer.
    fn probe(&self, socket: &Socket) -> io::Result<()> {
        if let Some(Keepalive { interval, probes, .. }) = self.keepalive {
            let keepalive =
                TcpKeepalive::new().with_time(interval).with_interval(interval).with_retries(probes);
            socket.set_tcp_keepalive(&keepalive)?;
        }
        socket.set_tcp_user_timeout(self.user_timeout)
    }

    /// Sets the options of an accepted connection.
    pub(crate) fn apply_accepted(&self, socket: &Socket, listener: &Socket) -> io::Result<()> {
        self.congestion.after_accept(socket, listener);
        self.apply(socket)
    }
}

/// Listens on an address.
pub(crate) fn listen(address: SocketAddr, options: &Options) -> Result<Socket> {
    let bound = || {
        if let Some(system) = simulation::simulated() {
            return system.listen(address).map(Socket::from);
        }
        let socket = stream_socket(address)?;
        // On Linux this reuses ports of closed connections, but never those of live listeners.
        socket.set_reuse_address(true)?;
        if address.ip() == IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED) {
            socket.set_only_v6(false)?;
        }
        options.set_buffers(&socket)?;
        options.congestion.set(&socket, None)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    bound().map_err(|e| Error::io(format!("bind {address}"), e))
}

/// Begins to connect. The socket is connected once it is writable and has no error.
pub(crate) fn start_connect(address: SocketAddr, options: &Options) -> io::Result<Socket> {
    if let Some(system) = simulation::simulated() {
        return system.connect(address).map(Socket::from);
    }
    let socket = stream_socket(address)?;
    options.set_buffers(&socket)?;
    options.congestion.set(&socket, Some(address))?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e),
    }
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Accepts a connection, if there is one.
pub(crate) fn accept(listener: &Socket) -> io::Result<Option<(Socket, SocketAddr)>> {
    if let Some(system) = simulation::simulated() {
        let accepted = system.accept(listener.as_fd())?;
        return Ok(accepted.map(|(socket, address)| (socket.into(), address)));
    }
    match listener.accept() {
        Ok((socket, address)) => {
            socket.set_nonblocking(true)?;
            let address = address.as_socket().unwrap_or_else(unknown_address);
            Ok(Some((socket, address)))
        }
        // A connection that broke in the backlog is not an error of the listener.
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
            _ => Err(e),
        },
    }
}

/// Returns the reason why a connection broke or could not be made, if it was not returned before.
pub(crate) fn take_error(socket: &Socket) -> io::Result<Option<io::Error>> {
    let simulated = simulation::simulated().and_then(|system| system.take_error(socket.as_fd()));
    simulated.map_or_else(|| socket.take_error(), |error| Ok(Some(error)))
}

pub(crate) fn local_address(socket: &Socket) -> Result<SocketAddr> {
    if let Some(system) = simulation::simulated() {
        return Ok(system.local_address(socket.as_fd()).unwrap_or_else(unknown_address));
    }
    let address = socket.local_addr().map_err(|e| Error::io("read a socket's own address", e))?;
    Ok(address.as_socket().unwrap_or_else(unknown_address))
}

fn unknown_address() -> SocketAddr {
    SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0)
}

/// Whether the packets of a connected socket stay on this machine.
pub(crate) fn stays_on_this_machine(socket: &Socket) -> bool {
    if simulation::simulated().is_some() {
        // The simulation itself breaks connections to hosts that do not answer.
        return true;
    }
    let ip = |address: io::Result<SockAddr>| address.ok().and_then(|a| a.as_socket()).map(|a| a.ip());
    let local = ip(socket.local_addr());
    local.is_some_and(|local| local.to_canonical().is_loopback())
        || local.is_some() && local == ip(socket.peer_addr())
}

/// Whether a socket is connected to itself, which happens if a closed port is dialed from the same
/// port.
pub(crate) fn is_connected_to_itself(socket: &Socket) -> bool {
    let of = |address: io::Result<SockAddr>| address.ok().and_then(|a| a.as_socket());
    let local = of(socket.local_addr());
    local.is_some() && local == of(socket.peer_addr())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use comm_mesh::wait_for;
    use rustix::event::PollFlags;

    use super::*;

    /// Both ends of a connection over loopback.
    fn pair(options: &Options) -> (Socket, Socket) {
        let listener = listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let near = start_connect(local_address(&listener).unwrap(), options).unwrap();
        assert!(wait_for(&listener, PollFlags::IN, Instant::now() + Duration::from_secs(10)).unwrap());
        let (far, _) = accept(&listener).unwrap().unwrap();
        options.apply(&near).unwrap();
        options.apply_accepted(&far, &listener).unwrap();
        (near, far)
    }

    #[test]
    fn both_ends_of_a_channel_are_set_up_alike() {
        let mut config = TcpConfig { send_buffer: Some(150_000), ..TcpConfig::default() };
        config.recv_buffer = Some(160_000);
        for keepalive in [None, Some(Keepalive::new(Duration::from_secs(30)))] {
            let options = Options::channel(&config, keepalive);
            let (near, far) = pair(&options);
            for socket in [near, far] {
                assert!(socket.tcp_nodelay().unwrap());
                // Within a host nothing is probed.
                assert!(!socket.keepalive().unwrap());
                options.probe(&socket).unwrap();
                assert_eq!(socket.keepalive().unwrap(), keepalive.is_some());
                if keepalive.is_some() {
                    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(3));
                    assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(3));
                    assert_eq!(socket.tcp_keepalive_retries().unwrap(), 10);
                }
                assert_eq!(socket.tcp_user_timeout().unwrap(), None);
                // Linux doubles what it is asked for.
                assert_eq!(socket.send_buffer_size().unwrap(), 300_000);
                assert_eq!(socket.recv_buffer_size().unwrap(), 320_000);
            }
        }
    }

    /// Below this, windows are smaller than segments, and transfers pause for the kernel's persist
    /// timer.
    #[test]
    fn buffers_smaller_than_a_segment_are_raised() {
        for tiny in [0, 1, 4096, TcpConfig::BUFFER_BYTES_MIN] {
            let mut config = TcpConfig { send_buffer: Some(tiny), ..TcpConfig::default() };
            config.recv_buffer = Some(tiny);
            let (near, far) = pair(&Options::channel(&config, None));
            for socket in [near, far] {
                assert_eq!(socket.send_buffer_size().unwrap(), 2 * TcpConfig::BUFFER_BYTES_MIN);
                assert_eq!(socket.recv_buffer_size().unwrap(), 2 * TcpConfig::BUFFER_BYTES_MIN);
            }
        }
    }
}

//! A free port.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// A port of this host that is reserved while this lives, and on which rank 0 can still listen.
pub(crate) struct Port {
    pub(crate) number: u16,
    _socket: OwnedFd,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        // Processes of other tests do not inherit it.
        let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(net::getsockname(&socket).unwrap()).unwrap();
        Self { number: address.port(), _socket: socket }
    }
}

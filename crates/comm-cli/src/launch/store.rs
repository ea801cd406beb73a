//! The store where the ranks of a launch meet.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZeroU64;

/// A store that is served until it is dropped.
#[derive(Debug)]
pub(super) struct Store(TcpListener);

/// Serves a store on any free port of `address`.
pub(super) fn serve(address: IpAddr, _job: NonZeroU64, _secret: Option<&OsStr>) -> io::Result<Store> {
    TcpListener::bind(SocketAddr::new(address, 0)).map(Store)
}

impl Store {
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

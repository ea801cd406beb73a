//! The server's handle.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::{Bell, Error, Result};

use super::StoreConfig;
use super::reactor::{Census, Reactor};
use crate::socket::{self, Options};

/// A store that serves many clients from one thread of its own, until it is dropped.
///
/// Whoever does not speak its protocol, belongs to another job or does not know the secret is dropped with a warning
/// and harms nobody else. Dropping the server closes its connections, which ends what clients are waiting for with an
/// error, and joins the thread.
#[derive(Debug)]
pub struct TcpStoreServer {
    local: SocketAddr,
    stop: Bell,
    census: Arc<Census>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Listens on an address. Port 0 lets the system choose one, which [`TcpStoreServer::local_addr`] tells.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound or there is no thread to be had.
    pub fn bind(address: SocketAddr, config: StoreConfig) -> Result<Self> {
        let options = Options::store();
        let listener = socket::listen(address, &options)?;
        let local = socket::local_address(&listener)?;
        let failed = |e: rustix::io::Errno| Error::io("set up a store", e.into());
        let stop = Bell::new()?;
        let census = Arc::default();
        let reactor =
            Reactor::new(listener, options, stop.as_fd(), config, Arc::clone(&census)).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("comm-store".into())
            .spawn(move || reactor.run())
            .map_err(|e| Error::io("start the thread of a store", e))?;
        Ok(Self { local, stop, census, thread: Some(thread) })
    }

    /// The address that the server listens on.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Stops once every client has disconnected, but after `timeout` at the latest: clients that wait for a last word
    /// get it.
    pub fn drain(self, timeout: Duration) {
        self.census.wait_for_none(timeout);
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.stop.ring();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a store had panicked");
        }
    }
}

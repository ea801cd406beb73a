//! The server's handle.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::{Bell, Error, Process, Result};
use comm_mesh::deadline_after;
use rustix::io::Errno;
use socket2::Socket;

use super::StoreConfig;
use super::reactor::{Census, Reactor};
use super::refusing::refuse_clients;
use crate::socket::{self, Options};

/// A store that serves many clients from one thread of its own, until it is dropped.
///
/// Whoever does not speak its protocol, belongs to another job or does not know the secret is dropped with a warning
/// and harms nobody else. Dropping the server closes its connections, which ends what clients are waiting for with an
/// error, and joins the thread. In a child that was made by `fork` neither dropping nor draining it does anything: its
/// parent goes on to serve.
#[derive(Debug)]
pub struct TcpStoreServer {
    local: SocketAddr,
    stop: Bell,
    census: Arc<Census>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread.
    process: Process,
}

impl TcpStoreServer {
    /// Listens on an address. Port 0 lets the system choose one, which [`TcpStoreServer::local_addr`] tells.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound or the system refuses a thread or a descriptor. Where it listens by then,
    /// it returns a second later: clients that connect until then get
    /// [`Refusal::StoreUnavailable`](comm_core::Refusal::StoreUnavailable).
    pub fn bind(address: SocketAddr, config: StoreConfig) -> Result<Self> {
        let options = Options::store();
        let listener = socket::listen(address, &options)?;
        let started = Self::start(&listener, &options, &config);
        if let Err(Error::Io { source, .. }) = &started {
            let cause = Errno::from_io_error(source).unwrap_or(Errno::IO);
            refuse_clients(&listener, &options, &config, cause);
        }
        started
    }

    fn start(listener: &Socket, options: &Options, config: &StoreConfig) -> Result<Self> {
        let local = socket::local_address(listener)?;
        let failed = |e: io::Error| Error::io("set up a store", e);
        let listener = listener.try_clone().map_err(failed)?;
        let stop = Bell::new()?;
        let census = Arc::default();
        let reactor =
            Reactor::new(listener, options.clone(), stop.as_fd(), config.clone(), Arc::clone(&census))
                .map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("comm-store".into())
            .spawn(move || reactor.run())
            .map_err(|e| Error::io("start the thread of a store", e))?;
        Ok(Self { local, stop, census, thread: Some(thread), process: Process::current() })
    }

    /// The address that the server listens on.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Takes no new connections, so that the address can be bound again, and stops once every client has disconnected, but
    /// after `grace` at the latest. Until then clients can still read. Who waits for a key that does not exist gets
    /// [`Refusal::StoreClosing`](comm_core::Refusal::StoreClosing).
    ///
    /// Returns when the server has stopped, or after `wait` while its thread goes on.
    pub fn drain(mut self, wait: Duration, grace: Duration) {
        if !self.process.is_current() {
            return;
        }
        self.census.drain(deadline_after(grace));
        self.stop.ring();
        if !self.census.wait_drained(wait, grace) {
            // The thread owns all that it needs, except for the bell, which it no longer heeds.
            drop(self.thread.take());
        }
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.thread.take());
            return;
        }
        if self.thread.is_none() {
            return;
        }
        self.stop.ring();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a store had panicked");
        }
    }
}

//! The handle of the server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use comm_core::simulation::ScheduledThread;
use comm_core::{Error, Notify, Process, Result};
use comm_mesh::deadline_after;
use rustix::io::Errno;
use socket2::Socket;

use super::StoreConfig;
use super::budget::MemoryBudget;
use super::reactor::{Reactor, Status};
use super::refusing::refuse_clients;
use crate::socket::{self, Options};

/// A store that serves many clients from one thread of its own, until it is dropped.
///
/// Connections that speak another protocol, belong to another job or have another secret are closed
/// with a warning, and do not affect other clients. Dropping the server closes its connections, so
/// that pending operations of clients fail, and joins the thread. In a forked child, neither
/// dropping nor draining it has an effect, and the parent continues to serve.
#[derive(Debug)]
pub struct TcpStoreServer {
    local: SocketAddr,
    stop: Notify,
    status: Arc<Status>,
    thread: Option<JoinHandle<()>>,
    scheduled: ScheduledThread,
    /// The process of the thread.
    process: Process,
}

impl TcpStoreServer {
    /// Listens on an address. Port 0 lets the system choose one, see
    /// [`TcpStoreServer::local_addr`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is TLS, but neither a secret nor certificates. [`Error::Io`] if
    /// the address cannot be bound, or the system refuses a thread or a file descriptor. If it
    /// already listens when that fails, it returns a second later, and clients that connect in the
    /// meantime get [`Refusal::StoreUnavailable`](comm_core::Refusal::StoreUnavailable).
    pub fn bind(address: SocketAddr, config: StoreConfig) -> Result<Self> {
        config.protection().check()?;
        let options = Options::store_server(config.keepalive_timeout);
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
        let stop = Notify::new()?;
        let status = Arc::new(Status::new(MemoryBudget::new(config.stored_bytes_max)));
        let reactor =
            Reactor::new(listener, options.clone(), stop.as_fd(), config.clone(), Arc::clone(&status))
                .map_err(failed)?;
        let (scheduled, body) = ScheduledThread::new(move || reactor.run());
        let thread = std::thread::Builder::new()
            .name("comm-store".into())
            .spawn(body)
            .map_err(|e| Error::io("start the thread of a store", e))?;
        Ok(Self { local, stop, status, thread: Some(thread), scheduled, process: Process::current() })
    }

    /// The address on which the server listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The bytes that it holds for all clients.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.status.budget.held_bytes()
    }

    /// Stops accepting connections, so that the address can be bound again, and stops once every
    /// client has disconnected, or after `grace` at the latest. Until then clients can still read.
    /// Operations that wait for a key fail with
    /// [`Refusal::StoreClosing`](comm_core::Refusal::StoreClosing).
    ///
    /// Returns when the server has stopped, or after `wait` while its thread continues.
    pub fn drain(mut self, wait: Duration, grace: Duration) {
        if !self.process.is_current() {
            return;
        }
        self.status.drain(deadline_after(grace));
        self.stop.notify();
        if !self.status.wait_drained(wait, grace) {
            // The thread owns everything that it still uses.
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
        self.stop.notify();
        self.scheduled.await_end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of a store panicked");
        }
    }
}

//! The key-value store through which ranks find each other: a server with one thread, its clients,
//! and a client of PyTorch's store.

mod accept;
mod budget;
mod client;
mod connection;
mod errors;
mod file;
mod frame;
mod poll_timer;
mod pool;
mod presence;
mod protocol;
mod reactor;
mod refusing;
mod requests;
mod server;
mod table;
mod torch;

use std::time::Duration;

pub use client::TcpStore;
pub use file::FileStore;
pub use server::TcpStoreServer;
pub use torch::TorchStore;

use comm_core::Refusal;

use crate::config::TcpConfig;
use crate::hello::{Hello, Purpose};
use crate::protection::ProtectionConfig;
use crate::secret::Secret;

/// Settings of a store. Server and clients must have the same `job` and `secret`; each side has its
/// own limits.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The job of the store. Clients of other jobs are refused.
    pub job: u64,
    /// The shared secret. A side with a secret refuses a side without the same one.
    pub secret: Option<Secret>,
    /// Whether connections have checksums, as in [`TcpConfig::checksums`].
    pub checksums: bool,
    /// TLS for all connections, as in [`TcpConfig::tls`]. A side with TLS refuses a side without
    /// it. PyTorch's store cannot use it.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::Tls>,
    /// The largest request or response in bytes. Larger ones are never held in memory.
    pub frame_bytes_max: usize,
    /// The maximum number of bytes that the server holds for all clients together: keys, values,
    /// requests that are being received, and lists of keys that clients wait for. Each key counts
    /// 96 bytes more than its length, and each connection has another 16 KiB. Requests that would
    /// exceed the limit fail with the error that the store is full.
    pub stored_bytes_max: usize,
    /// The maximum number of client connections. It is limited to half of the file descriptors that
    /// the process may have. Further ones are closed.
    pub connections_max: usize,
    /// The maximum number of connections that have not authenticated yet. It is limited to 64, and
    /// to 1/16 of the file descriptors that the process may have. A further one waits, or replaces
    /// a silent one.
    pub pending_max: usize,
    /// The timeout of the handshake of a connection to the server.
    pub handshake_timeout: Duration,
    /// The timeout of a request or response after its first byte, and of an operation without a
    /// timeout of its own.
    pub operation_timeout: Duration,
    /// The time after which the other side is lost if its host does not answer, as in
    /// [`TcpConfig::keepalive_timeout`]. A server then executes the last will of the client; an
    /// operation of a client fails.
    pub keepalive_timeout: Option<Duration>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            job: 0,
            secret: None,
            checksums: false,
            #[cfg(feature = "tls")]
            tls: None,
            frame_bytes_max: 16 << 20,
            stored_bytes_max: 64 << 20,
            connections_max: 16_384,
            pending_max: 64,
            handshake_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(30),
            keepalive_timeout: Some(TcpConfig::KEEPALIVE_TIMEOUT),
        }
    }
}

impl StoreConfig {
    /// Returns the default settings of the store of a job.
    #[must_use]
    pub fn job(job: u64) -> Self {
        Self { job, ..Self::default() }
    }

    /// Returns the same settings with a secret.
    #[must_use]
    pub fn secret(mut self, secret: Option<Secret>) -> Self {
        self.secret = secret;
        self
    }

    /// Returns whether only processes that were given the secret or a certificate can connect.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        self.protection().authenticates()
    }

    fn protection(&self) -> ProtectionConfig {
        #[cfg(feature = "tls")]
        let tls = self.tls.clone();
        #[cfg(not(feature = "tls"))]
        let tls = None;
        ProtectionConfig { secret: self.secret.clone(), checksums: self.checksums, tls }
    }

    fn authorize(&self, hello: &Hello) -> Result<(), Refusal> {
        match hello.purpose {
            Purpose::Store if hello.job == self.job => Ok(()),
            Purpose::Store => Err(Refusal::Job),
            Purpose::Channel(_) => Err(Refusal::NotAPeer),
        }
    }
}

#[cfg(test)]
mod tests;

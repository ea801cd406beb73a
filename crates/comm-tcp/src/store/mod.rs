//! The key-value store through which ranks find each other: a server of one thread, its clients, and a client of
//! PyTorch's store.

mod accept;
mod client;
mod connection;
mod file;
mod frame;
mod idle;
mod ledger;
mod patience;
mod pause;
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

use crate::secret::Secret;

/// How a store is set up. Server and clients must agree on `job` and `secret`; limits are each side's own.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// The job that the store belongs to. A client of another job is refused.
    pub job: u64,
    /// The shared secret. A side that has one refuses a side that has not.
    pub secret: Option<Secret>,
    /// The largest request or response in bytes. Nothing larger is ever held in memory.
    pub frame_bytes_max: usize,
    /// The most bytes that the server holds for all clients together: keys, values, requests that are arriving and
    /// lists of keys that are awaited. Each key counts 96 bytes more than it has, and each connection has 16 KiB beside
    /// this. What would exceed it is refused, with an error that says that the store is full.
    pub stored_bytes_max: usize,
    /// The most clients' connections that the server holds, at most half of the descriptors that its process may have.
    /// Further ones are closed.
    pub connections_max: usize,
    /// The most connections that have not yet authenticated, at most 64 and one in 16 of the descriptors that the
    /// process may have. A further one takes the place of one that has said nothing, or waits.
    pub strangers_max: usize,
    /// How long a connection to the server has for its handshake.
    pub handshake_timeout: Duration,
    /// How long one request or response may take on its way, once its first byte is there; and how long a client
    /// waits for the answer to an operation that has no timeout of its own.
    pub operation_timeout: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            job: 0,
            secret: None,
            frame_bytes_max: 16 << 20,
            stored_bytes_max: 64 << 20,
            connections_max: 16_384,
            strangers_max: 64,
            handshake_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(30),
        }
    }
}

impl StoreConfig {
    /// The default store of a job.
    #[must_use]
    pub fn job(job: u64) -> Self {
        Self { job, ..Self::default() }
    }

    /// The same store, with a secret.
    #[must_use]
    pub fn secret(mut self, secret: Option<Secret>) -> Self {
        self.secret = secret;
        self
    }
}

#[cfg(test)]
mod tests;

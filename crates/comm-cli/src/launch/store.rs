//! The store where the ranks of a launch meet.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;

use comm::tcp::{Secret, StoreConfig, TcpStoreServer};

/// Serves a store until it is dropped. The launcher does it, and not rank 0, so that it outlives
/// every rank: whoever is left after a failure can still meet the others there.
pub(super) fn serve(address: SocketAddr, job: NonZeroU64, secret: &OsStr) -> comm::Result<TcpStoreServer> {
    let secret = Secret::new(secret.as_bytes())?;
    TcpStoreServer::bind(address, StoreConfig::job(job.get()).secret(Some(secret)))
}

//! The store of a launch.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;

use comm::tcp::{Secret, StoreConfig, TcpStoreServer};

/// Serves a store until it is dropped. The launcher serves it instead of rank 0, so that the
/// remaining ranks can still reach it after a failure.
pub(super) fn serve(address: SocketAddr, job: NonZeroU64, secret: &OsStr) -> comm::Result<TcpStoreServer> {
    let secret = Secret::new(secret.as_bytes())?;
    TcpStoreServer::bind(address, StoreConfig::job(job.get()).secret(Some(secret)))
}

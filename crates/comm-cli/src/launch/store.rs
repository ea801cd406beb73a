//! The store of a launch.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use comm::tcp::{Secret, StoreConfig, TcpStore, TcpStoreServer, WaitList};

use super::environment::Job;

/// The time limit for connecting to the store of this process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a store until it is dropped. The launcher serves it instead of rank 0, so that the
/// remaining ranks can still reach it after a failure.
pub(super) fn serve(
    address: SocketAddr,
    job: NonZeroU64,
    secret: Option<&OsStr>,
) -> comm::Result<TcpStoreServer> {
    TcpStoreServer::bind(address, config(job, secret)?)
}

fn config(job: NonZeroU64, secret: Option<&OsStr>) -> comm::Result<StoreConfig> {
    let secret = secret.map(|secret| Secret::new(secret.as_bytes())).transpose()?;
    Ok(StoreConfig::job(job.get()).secret(secret))
}

/// Lets processes that wait to join the group know that it has ended.
pub(super) fn close_wait_list(job: &Job) -> comm::Result<()> {
    let store = TcpStore::connect(job.store, config(job.id, job.secret.as_deref())?, CONNECT_TIMEOUT)?;
    // The environment of a launch always describes the first round.
    WaitList::new(&store, job.id.get(), 0).close()
}

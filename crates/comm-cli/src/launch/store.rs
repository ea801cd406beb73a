//! The store of a launch.

use std::net::SocketAddr;
use std::time::Duration;

use comm::tcp::{StoreConfig, TcpStore, WaitList};

/// The time limit for connecting to the store of this process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Lets processes that wait to join the group know that it has ended.
pub(super) fn close_wait_list(address: SocketAddr, config: &StoreConfig) -> comm::Result<()> {
    let store = TcpStore::connect(address, config.clone(), CONNECT_TIMEOUT)?;
    // The environment of a launch always describes the first round.
    WaitList::new(&store, config.job, 0).close()
}

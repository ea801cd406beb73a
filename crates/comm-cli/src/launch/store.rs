//! The store of a launch.

use std::time::Duration;

use comm::tcp::{TcpStore, WaitList};

use super::environment::Job;

/// The time limit for connecting to the store of this process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Lets processes that wait to join the group know that it has ended.
pub(super) fn close_wait_list(job: &Job) -> comm::Result<()> {
    let store = TcpStore::connect(job.store, job.store_config.clone(), CONNECT_TIMEOUT)?;
    // The environment of a launch always describes the first round.
    WaitList::new(&store, job.id.get(), 0).close()
}

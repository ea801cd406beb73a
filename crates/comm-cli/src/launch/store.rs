//! The store of a launch.

use std::net::SocketAddr;
use std::time::Duration;

use comm::tcp::{Admissions, StoreConfig, TcpStore, WaitList};

/// The time limit for connecting to the store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The list of the processes that wait to join the group of the ranks, in their store.
#[derive(Debug)]
pub(super) struct JoinList {
    address: SocketAddr,
    config: StoreConfig,
    store: Option<TcpStore>,
}

impl JoinList {
    /// Creates the list in the store at an address, to which it connects on first use.
    pub(super) const fn new(address: SocketAddr, config: StoreConfig) -> Self {
        Self { address, config, store: None }
    }

    /// Returns which of the processes with these ids the group has admitted.
    pub(super) fn admissions(&mut self, ids: impl IntoIterator<Item = u64>) -> comm::Result<Admissions> {
        self.with(|list| list.admissions(ids))
    }

    /// Lets processes that wait to join the group know that it has ended.
    pub(super) fn close(&mut self) -> comm::Result<()> {
        self.with(|list| list.close())
    }

    fn with<T>(&mut self, use_list: impl FnOnce(WaitList<'_>) -> comm::Result<T>) -> comm::Result<T> {
        let store = match self.store.take() {
            Some(store) => store,
            None => TcpStore::connect(self.address, self.config.clone(), CONNECT_TIMEOUT)?,
        };
        // The environment of a launch always describes the first round.
        let result = use_list(WaitList::new(&store, self.config.job, 0));
        self.store = Some(store).filter(|_| result.is_ok());
        result
    }
}

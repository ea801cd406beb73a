//! Asks the agents of a job from a process that is none of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::__private::Master;
use comm::Store;
use comm::tcp::{StoreConfig, TcpStore};

use super::join::{AgentSettings, SETTINGS, entry_key};
use super::{AgentError, Entry, JOB, Nodes};
use crate::observe::HostAnswer;
use crate::observe::agent::Hosts;

/// The time in which the store must be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Nodes {
    /// Returns the answers of the ranks of all hosts, in the order of the hosts. `config` has the
    /// secret of the job.
    ///
    /// # Errors
    /// [`AgentError::Store`] if the store of the agents cannot be reached or used.
    #[doc(hidden)]
    pub fn ask(&self, mut config: StoreConfig, calls: usize) -> Result<Vec<HostAnswer>, AgentError> {
        let failed = |error| self.failed(error);
        config.job = JOB;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let master = Master::resolve(&self.host, self.port, left()).map_err(failed)?;
        let store = TcpStore::connect_first(master.addresses(), config, left()).map_err(failed)?;
        let settings = store.get(SETTINGS, left()).map_err(failed)?;
        let settings: AgentSettings = self.decode(&settings)?;
        let entries = (0..settings.nnodes).map(|rank| {
            let entry = store.get(&entry_key(rank), left()).map_err(failed)?;
            self.decode::<Entry>(&entry)
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let ranks = entries.iter().map(|entry| entry.ranks).sum();
        let names = entries.into_iter().map(|entry| entry.host).collect();
        let hosts = Hosts { store: Arc::new(store), own: 0, names, ranks };
        hosts.ask_all(format!("{{\"calls\": {calls}}}").as_bytes()).map_err(failed)
    }
}

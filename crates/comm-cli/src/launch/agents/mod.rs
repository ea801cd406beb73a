//! The launchers of several hosts, called agents as in torchrun, which start and end their ranks
//! together.
//!
//! They meet in a store that agent 0 serves. Each leaves a last will there, so the store tells the
//! others if one is killed or its host does not answer. A failure is written to the store once, and
//! every agent watches that key.
//!
//! | part | file |
//! |---|---|
//! | the options of a user | `nodes.rs` |
//! | assigns node ranks | `join.rs` |
//! | one start of all ranks | `round.rs` |
//! | asks agents from outside of the job | `query.rs` |
//! | the events of a start that tolerates failures | `log.rs` |
//! | an agent that comes back to such a start | `rejoin.rs` |
//! | the end of a start, as agents tell it each other | `verdict.rs` |

mod error;
mod join;
mod log;
mod nodes;
mod query;
mod rejoin;
mod round;
mod verdict;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use comm::Store;
use comm::tcp::{StoreConfig, TcpStore, TcpStoreServer};
use serde::{Deserialize, Serialize};

pub use error::AgentError;
pub use nodes::{Node, NodeChange, Nodes};

pub(super) use join::Share;
pub(super) use log::EventLog;
pub(super) use rejoin::Rejoined;
pub(super) use round::{Absent, RankStore, Round};
pub(super) use verdict::Verdict;

use crate::observe::agent::{Answering, Hosts};

/// The job id of the store in which agents meet. Ranks have another store for each start.
const JOB: u64 = 0x00a9_e175;
/// The time for which agent 0 serves the store after the end, so that others can read the cause.
const FAREWELL: Duration = Duration::from_secs(5);
/// The time limit of an operation of the store that does not wait.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The agents of a job, once all have come.
#[derive(Debug)]
pub(super) struct Agents {
    /// Ends before the store.
    answering: Option<Answering>,
    /// Dropped before the server, which waits for its clients.
    store: Option<Arc<TcpStore>>,
    server: Option<TcpStoreServer>,
    /// The configuration of the ranks' store, without its job.
    config: StoreConfig,
    address: String,
    own: Node,
    /// Distinguishes this agent from an earlier one of the same node.
    token: String,
    entries: Vec<Entry>,
    /// The last start and its presence, until the next one has begun.
    last: Option<Round>,
    /// The start that this agent has joined while it runs, until it takes part in it.
    rejoined: Option<Rejoined>,
    timeout: Duration,
}

/// An agent, as it describes itself to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    host: String,
    ranks: usize,
    /// Distinguishes agents that claim the same node rank.
    token: String,
}

impl Agents {
    pub(super) const fn own(&self) -> &Node {
        &self.own
    }

    pub(super) const fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of ranks on hosts before this one, and of all ranks.
    pub(super) fn ranks(&self) -> (usize, usize) {
        let sum = |entries: &[Entry]| entries.iter().map(|entry| entry.ranks).sum();
        (sum(self.entries.get(..self.own.rank).unwrap_or_default()), sum(&self.entries))
    }

    /// Returns the tokens of the agents with which the job has begun, and their numbers of ranks.
    pub(super) fn first_agents(&self) -> impl Iterator<Item = (String, usize)> {
        self.entries.iter().map(|entry| (entry.token.clone(), entry.ranks))
    }

    /// Returns the agent that serves the stores, and its token.
    pub(super) fn store_node(&self) -> (Node, String) {
        let token = self.entries.first().map_or_else(String::new, |entry| entry.token.clone());
        (self.node(0), token)
    }

    /// Returns the address of a store of the ranks, and its configuration.
    pub(super) fn rank_store_config(
        &self,
        store: RankStore,
    ) -> Result<(SocketAddr, StoreConfig), AgentError> {
        let mut config = self.config.clone();
        (config.job, config.operation_timeout) = (store.job, OPERATION_TIMEOUT);
        Ok((SocketAddr::new(self.store()?.server_addr().ip(), store.port), config))
    }

    /// Returns the start that runs, if this agent has joined one.
    pub(super) fn take_rejoined(&mut self) -> Option<Rejoined> {
        self.rejoined.take()
    }

    /// Serves a store for the ranks, on the address of the agents' store and a free port.
    pub(super) fn serve(&self, job: u64) -> Result<TcpStoreServer, AgentError> {
        let server = self.server.as_ref().ok_or_else(|| self.lost(0))?;
        let address = SocketAddr::new(server.local_addr().ip(), 0);
        let mut config = self.config.clone();
        (config.job, config.operation_timeout) = (job, StoreConfig::default().operation_timeout);
        TcpStoreServer::bind(address, config).map_err(|error| self.store_failed(error))
    }

    fn node(&self, rank: usize) -> Node {
        let host = self.entries.get(rank).map_or_else(|| "unknown".to_owned(), |entry| entry.host.clone());
        Node { rank, host }
    }

    fn store(&self) -> Result<&TcpStore, AgentError> {
        self.store.as_deref().ok_or_else(|| self.lost(0))
    }

    /// Starts to answer `commctl top`, if strangers can neither ask nor answer. If this fails, it
    /// shows the ranks of this host only.
    fn answer(&mut self) {
        #[cfg(feature = "tls")]
        let has_tls = self.config.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let has_tls = false;
        let is_authenticated = has_tls || self.config.secret.is_some();
        if let Some(store) = self.store.clone().filter(|_| is_authenticated) {
            let names = self.entries.iter().map(|entry| entry.host.clone()).collect();
            let hosts = Hosts { store, own: self.own.rank, names, ranks: self.ranks().1 };
            self.answering = Answering::start(hosts).ok();
        }
    }

    /// The error if an agent has ended without a word.
    fn lost(&self, rank: usize) -> AgentError {
        AgentError::Lost { node: self.node(rank) }
    }

    /// The error if some agents did not come in time. `keys` has one key for each.
    fn missing(&self, store: &TcpStore, keys: &[String]) -> AgentError {
        let is_missing = |(rank, key): (usize, &String)| {
            let is_there = store.check(&[key]).unwrap_or(false);
            (!is_there).then_some(rank)
        };
        let missing = keys.iter().enumerate().filter_map(is_missing).collect();
        AgentError::Missing { missing, address: self.address.clone(), after: self.timeout }
    }

    /// Returns the error of the store. It ends only with agent 0.
    fn store_failed(&self, error: comm::Error) -> AgentError {
        if self.own.rank == 0 {
            AgentError::Store { address: self.address.clone(), error: Box::new(error) }
        } else {
            self.lost(0)
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        if let Some(round) = self.last.take() {
            round.leave(self);
        }
        drop(self.answering.take());
        drop(self.store.take());
        if let Some(server) = self.server.take() {
            server.drain(FAREWELL, FAREWELL);
        }
    }
}

/// Waits until keys exist, or until `check`, which is called every now and then, returns an error.
/// Returns false at the deadline.
fn await_keys<E: From<AgentError>>(
    store: &TcpStore,
    keys: &[String],
    deadline: Instant,
    mut check: impl FnMut() -> Result<(), E>,
    failed: impl Fn(comm::Error) -> AgentError,
) -> Result<bool, E> {
    const STEP: Duration = Duration::from_millis(200);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match store.wait(&keys, left.min(STEP)) {
            Ok(()) => return Ok(true),
            Err(comm::Error::Timeout { .. }) if left.is_zero() => return Ok(false),
            Err(comm::Error::Timeout { .. }) => check()?,
            Err(error) => {
                // The store ends with agent 0, whose last message may arrive on another connection.
                check()?;
                thread::sleep(STEP);
                return check().and(Err(failed(error).into()));
            }
        }
    }
}

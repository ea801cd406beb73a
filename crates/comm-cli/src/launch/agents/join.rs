//! Assigns node ranks to agents, and waits until all have come.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use comm::__private::Master;
use comm::tcp::{StoreConfig, TcpStore, TcpStoreServer};
use comm::{Error, Invalid, Store};
use serde::{Deserialize, Serialize};

use super::AgentError;
use super::round::{Round, START, alive_key, key};
use super::{Agents, Entry, JOB, Node, Nodes, OPERATION_TIMEOUT, await_keys};
use crate::launch::elastic::{ElasticJob, Limits};
use crate::launch::start::random_id;

/// The key of the settings that all agents have in common.
pub(super) const SETTINGS: &str = "settings";

/// The settings of agent 0, with which all other agents must agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentSettings {
    pub(super) nnodes: usize,
    max_restarts: usize,
    /// The limits of `--elastic`; a maximum of 0 is none.
    elastic: Option<[usize; 2]>,
}

/// The part of this host in a job.
#[derive(Debug, Clone, Copy)]
pub(in crate::launch) struct Share {
    pub(in crate::launch) ranks: usize,
    pub(in crate::launch) max_restarts: usize,
    /// The limits of a launch that tolerates failures.
    pub(in crate::launch) elastic: Option<Limits>,
}

impl Agents {
    /// Meets the agents of all other hosts. `config` has the secret of the job.
    pub(in crate::launch) fn join(
        nodes: &Nodes,
        share: Share,
        mut config: StoreConfig,
    ) -> Result<Self, AgentError> {
        if let Some(rank) = nodes.rank.filter(|rank| *rank >= nodes.count) {
            return Err(AgentError::NodeRank { rank, nodes: nodes.count });
        }
        config.job = JOB;
        config.operation_timeout = OPERATION_TIMEOUT;
        let join = Join { nodes, config, deadline: Instant::now() + nodes.timeout };
        join.run(share)
    }
}

struct Join<'a> {
    nodes: &'a Nodes,
    config: StoreConfig,
    deadline: Instant,
}

impl Join<'_> {
    fn run(self, share: Share) -> Result<Agents, AgentError> {
        let left = || self.deadline.saturating_duration_since(Instant::now());
        let master = Master::resolve(&self.nodes.host, self.nodes.port, left());
        let master = master.map_err(|error| self.unusable(error))?;
        let server = self.serve(&master)?;
        let store = TcpStore::connect_first(master.addresses(), self.config.clone(), left());
        let store = store.map_err(|error| self.failed(error))?;
        let own = Entry { host: hostname(), ranks: share.ranks, token: self.token()? };
        let elastic = share.elastic.map(|limits| [limits.ranks_min, limits.ranks_max]);
        let ours = AgentSettings { nnodes: self.nodes.count, max_restarts: share.max_restarts, elastic };
        let rank = if server.is_some() {
            let rank = self.claim(&store, 0..1, &own)?;
            store.set(SETTINGS, &encode(&ours)).map_err(|error| self.failed(error))?;
            rank
        } else {
            self.compare_settings(&store, &ours)?;
            if let Some(limits) = share.elastic
                && store.check(&[&key(0, START)]).map_err(|error| self.failed(error))?
            {
                return self.rejoin(store, own, limits);
            }
            let ranks = self.nodes.rank.map_or(1..self.nodes.count, |rank| rank..rank + 1);
            self.claim(&store, ranks, &own)?
        };
        let entries = vec![self.entry(&store, 0)?];
        let mut agents = self.agents(store, rank, own, entries);
        agents.server = server;
        // The last will comes before the announcement that this agent is here.
        let first = Round::open(&agents, 0)?;
        let entries = self.await_all(&agents, &first);
        if let Err(error @ AgentError::Missing { .. }) = &entries {
            agents.publish_failure(&first, error);
        }
        agents.last = Some(first);
        agents.entries = entries?;
        agents.answer();
        Ok(agents)
    }

    fn agents(&self, store: TcpStore, rank: usize, own: Entry, entries: Vec<Entry>) -> Agents {
        Agents {
            answering: None,
            store: Some(Arc::new(store)),
            server: None,
            config: self.config.clone(),
            address: self.nodes.address(),
            own: Node { rank, host: own.host },
            token: own.token,
            entries,
            last: None,
            rejoined: None,
            timeout: self.nodes.timeout,
        }
    }

    /// Joins a job that runs and tolerates failures, in place of an agent that was lost.
    fn rejoin(&self, store: TcpStore, own: Entry, limits: Limits) -> Result<Agents, AgentError> {
        let entries = (0..self.nodes.count).map(|rank| self.entry(&store, rank));
        let entries = entries.collect::<Result<Vec<Entry>, AgentError>>()?;
        let Some(rank) = self.nodes.rank else {
            return Err(AgentError::NodeRankMissing);
        };
        if entries.get(rank).is_none_or(|before| before.ranks != own.ranks) {
            let reason = "its former agent had another number of ranks (-n)";
            return Err(AgentError::NotAdmitted { rank, reason });
        }
        let mut agents = self.agents(store, rank, own, entries);
        let state = ElasticJob::new(limits, 0, agents.first_agents());
        agents.rejoined = Some(agents.rejoin(state)?);
        agents.answer();
        Ok(agents)
    }

    /// Serves the store if this is agent 0: as set, or because the address is one of this host.
    fn serve(&self, master: &Master) -> Result<Option<TcpStoreServer>, AgentError> {
        match (self.nodes.rank, master) {
            (Some(1..), _) => Ok(None),
            (Some(_), master) => master.serve(&self.config).map(Some).map_err(|error| self.unusable(error)),
            // Another host has the address, or another agent of this host serves there.
            (None, master) => match master.serve(&self.config) {
                Err(Error::Invalid(Invalid::Setting { .. })) => Ok(None),
                outcome => outcome.map(Some).map_err(|error| self.failed(error)),
            },
        }
    }

    fn compare_settings(&self, store: &TcpStore, ours: &AgentSettings) -> Result<(), AgentError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let theirs = store.get(SETTINGS, left).map_err(|error| self.failed(error))?;
        let theirs: AgentSettings = self.decode(&theirs)?;
        if ours.nnodes != theirs.nnodes {
            return Err(differs("--nnodes", ours.nnodes, theirs.nnodes));
        }
        if ours.max_restarts != theirs.max_restarts {
            return Err(differs("--max-restarts", ours.max_restarts, theirs.max_restarts));
        }
        if ours.elastic != theirs.elastic {
            return Err(differs("--elastic", limits(ours.elastic), limits(theirs.elastic)));
        }
        Ok(())
    }

    /// Claims the first of these node ranks that is free.
    fn claim(&self, store: &TcpStore, ranks: Range<usize>, own: &Entry) -> Result<usize, AgentError> {
        let mut taken = None;
        for rank in ranks {
            let found = store.compare_set(&entry_key(rank), b"", &encode(own));
            let found: Entry = self.decode(&found.map_err(|error| self.failed(error))?)?;
            if found == *own {
                return Ok(rank);
            }
            taken = Some(AgentError::NodeRankTaken { rank, host: found.host });
        }
        let too_many = AgentError::TooManyNodes { nodes: self.nodes.count };
        Err(taken.filter(|_| self.nodes.rank.is_some()).unwrap_or(too_many))
    }

    /// Waits for the agents of all nodes, and returns them in order.
    fn await_all(&self, agents: &Agents, round: &Round) -> Result<Vec<Entry>, AgentError> {
        let store = agents.store()?;
        let keys: Vec<String> = (0..self.nodes.count).map(|rank| alive_key(0, rank)).collect();
        let failed = |error| agents.store_failed(error);
        if !await_keys(store, &keys, self.deadline, || round.check(agents), failed)? {
            return Err(agents.missing(store, &keys));
        }
        (0..self.nodes.count).map(|rank| self.entry(store, rank)).collect()
    }

    fn entry(&self, store: &TcpStore, rank: usize) -> Result<Entry, AgentError> {
        let entry = store.get(&entry_key(rank), OPERATION_TIMEOUT).map_err(|error| self.failed(error))?;
        self.decode(&entry)
    }

    fn token(&self) -> Result<String, AgentError> {
        let failed = |source| self.failed(Error::io("draw a random number", source));
        random_id().map(|id| format!("{id:x}")).map_err(failed)
    }

    fn decode<T: for<'de> Deserialize<'de>>(&self, value: &[u8]) -> Result<T, AgentError> {
        self.nodes.decode(value)
    }

    fn failed(&self, error: Error) -> AgentError {
        self.nodes.failed(error)
    }

    /// Returns the error for an address, without the names of the variables of a rank.
    fn unusable(&self, error: Error) -> AgentError {
        let address = self.nodes.address();
        match error {
            Error::Invalid(Invalid::Setting { name, .. }) if name == "MASTER_PORT" => {
                let reason =
                    "the port is in use on this host: end the other program, or take another port".into();
                AgentError::Address { address, reason }
            }
            Error::Invalid(Invalid::Setting { reason, .. }) => AgentError::Address { address, reason },
            other => self.failed(other),
        }
    }
}

fn differs(setting: &str, ours: impl ToString, theirs: impl ToString) -> AgentError {
    let [ours, theirs] = [ours.to_string(), theirs.to_string()];
    AgentError::SettingDiffers { setting: setting.to_owned(), ours, theirs }
}

/// Formats the limits of `--elastic`.
fn limits(limits: Option<[usize; 2]>) -> String {
    match limits {
        None => "not set".to_owned(),
        Some([min, 0]) => min.to_string(),
        Some([min, max]) => format!("{min}:{max}"),
    }
}

pub(super) fn entry_key(rank: usize) -> String {
    format!("node/{rank}")
}

fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.lines().next().unwrap_or("unknown").to_owned()
}

/// Encodes a value, which has only numbers and texts, so that this cannot fail.
pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

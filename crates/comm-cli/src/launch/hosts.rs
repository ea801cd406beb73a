//! One start of the ranks of this host together with the ranks of other hosts.

use std::num::NonZeroU64;

use comm::tcp::TcpStoreServer;

use super::agents::{Absent, Agents, EventLog, RankStore, Rejoined, Round, Share};
use super::elastic::ElasticJob;
use super::environment::{self, Assigned, Job, Place};
use super::error::{LaunchError, system};
use super::running::{OtherNodes, Running};
use super::signals::StopSignals;
use super::start::random_id;
use super::store::JoinList;
use super::{Launch, Nodes};

/// A start of the ranks of this host together with the ranks of other hosts.
struct Start {
    round: Round,
    store: RankStore,
    /// The events of all hosts, if the start tolerates failures.
    elastic: Option<(EventLog, ElasticJob)>,
    /// The ids of the ranks of this host, if they join the ranks of other hosts.
    ids: Option<Vec<u64>>,
}

impl From<Rejoined> for Start {
    fn from(Rejoined { round, log, state, store, ids }: Rejoined) -> Self {
        Self { round, store, elastic: Some((log, state)), ids: Some(ids) }
    }
}

impl Launch {
    /// Starts the ranks of this host together with the ranks of all other hosts, and waits for the
    /// end of all.
    pub(super) fn run_on_nodes(
        &self,
        restarts: usize,
        assigned: Assigned,
        agents: &mut Agents,
    ) -> Result<(), LaunchError> {
        // Lives until all agents have agreed that the ranks have ended.
        let mut server = None;
        let start = match agents.take_rejoined() {
            Some(rejoined) => Start::from(rejoined),
            None => {
                let round = agents.open_round(restarts)?;
                match self.start_on_nodes(agents, &round, &mut server) {
                    Ok(store) if self.is_elastic() => self.start_elastic(agents, round, store)?,
                    Ok(store) => Start { round, store, elastic: None, ids: None },
                    Err(error) => {
                        agents.publish(&round, &error);
                        return agents.end(round, (Some(error), Absent::None), self.grace);
                    }
                }
            }
        };
        let Start { round, store, elastic, ids } = start;
        let (outcome, absent) = self.run_round(restarts, assigned, (agents, &round, store), (elastic, ids));
        let own = outcome.err();
        // The others go on without a host that goes on alone.
        if let (Some(error), Absent::None | Absent::Lost(_)) = (&own, &absent) {
            agents.publish(&round, error);
        }
        agents.end(round, (own, absent), self.grace)
    }

    /// Waits for the agents of all hosts, and returns the store of the ranks, which agent 0 serves.
    fn start_on_nodes(
        &self,
        agents: &Agents,
        round: &Round,
        server: &mut Option<TcpStoreServer>,
    ) -> Result<RankStore, LaunchError> {
        agents.agree_on_store(round, || {
            let job = random_id().map_err(system("draw a job id"))?.get();
            let bound = agents.serve(job)?;
            let port = bound.local_addr().port();
            *server = Some(bound);
            Ok(RankStore { job, port })
        })
    }

    /// Begins a start that tolerates failures.
    fn start_elastic(&self, agents: &Agents, round: Round, store: RankStore) -> Result<Start, LaunchError> {
        let (round, log) = agents.begin_elastic(round)?;
        let state = ElasticJob::new(self.limits(), 0, agents.first_agents());
        Ok(Start { round, store, elastic: Some((log, state)), ids: None })
    }

    fn run_round(
        &self,
        restarts: usize,
        assigned: Assigned,
        (agents, round, store): (&Agents, &Round, RankStore),
        (elastic, ids): (Option<(EventLog, ElasticJob)>, Option<Vec<u64>>),
    ) -> (Result<(), LaunchError>, Absent) {
        let running = StopSignals::catch().map_err(system("catch signals")).and_then(|signals| {
            let join_list = agents.rank_store_config(store)?;
            Ok((signals, (self.ranks_max > 0).then(|| JoinList::new(join_list.0, join_list.1))))
        });
        let (signals, join_list) = match running {
            Ok(running) => running,
            Err(error) => return (Err(error), Absent::None),
        };
        let (first_rank, world_size) = agents.ranks();
        let place = Place { node: agents.own().rank, nodes: agents.count(), first_rank, world_size };
        let (ranks, max_restarts, secret) =
            (self.ranks, self.max_restarts, self.given_env(environment::SECRET));
        let master = (self.nodes.as_ref().map(Nodes::host).unwrap_or_default().to_owned(), store.port);
        let id = NonZeroU64::new(store.job).unwrap_or(NonZeroU64::MAX);
        let job = Job { ranks, place, restarts, max_restarts, master, id, secret, assigned };
        let (log, state) = elastic.map_or_else(
            || (None, ElasticJob::new(self.limits(), first_rank, [(String::new(), ranks)])),
            |(log, state)| (Some(log), state),
        );
        let (relays, others) = (Vec::new(), Some(OtherNodes { agents, round, log, is_alone: false }));
        let running = Running { launch: self, job: &job, relays, state, join_list, checked: None, others };
        self.run_ranks(running, ids, signals)
    }

    /// Meets the launchers of the other hosts.
    pub(super) fn join(&self, nodes: &Nodes) -> Result<Agents, LaunchError> {
        let secret = self.given_env(environment::SECRET);
        let config = self.store_config(0, secret.as_ref()).map_err(|error| nodes.failed(error))?;
        let elastic = self.is_elastic().then(|| self.limits());
        let share = Share { ranks: self.ranks, max_restarts: self.max_restarts, elastic };
        Ok(Agents::join(nodes, share, config)?)
    }
}

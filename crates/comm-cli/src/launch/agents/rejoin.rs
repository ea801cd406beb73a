//! An agent that takes over a node whose former agent was lost, while the ranks of the others run.

use std::time::{Duration, Instant};

use comm::Store;

use super::log::await_event;
use super::{AgentError, Agents, EventLog, RankStore, Round};
use crate::launch::elastic::{Decision, ElasticJob, JobEvent, Refusal};

/// The time for which an agent waits until the others know that its predecessor is lost. They need
/// that long if its host has lost its power or network.
const LOSS_TIMEOUT: Duration = Duration::from_secs(20);

/// The part of an agent in a start that runs.
#[derive(Debug)]
pub(in crate::launch) struct Rejoined {
    pub(in crate::launch) round: Round,
    pub(in crate::launch) log: EventLog,
    pub(in crate::launch) state: ElasticJob,
    pub(in crate::launch) store: RankStore,
    /// The ids of the processes that this host starts.
    pub(in crate::launch) ids: Vec<u64>,
}

impl Agents {
    /// Joins the start that runs, in place of an agent of the same node that was lost. `state` is
    /// that at the beginning of the start.
    pub(super) fn rejoin(&self, mut state: ElasticJob) -> Result<Rejoined, AgentError> {
        let node = self.own.clone();
        let round = Round::open_elastic(self, 0)?;
        let mut log = EventLog::open(self, &round, 0)?;
        let deadline = Instant::now() + LOSS_TIMEOUT;
        loop {
            log.read(self)?.into_iter().for_each(|event| drop(state.apply(event)));
            let left = deadline.saturating_duration_since(Instant::now());
            if state.end().is_some() || state.is_lost(node.rank) || left.is_zero() {
                break;
            }
            await_event(self, &log, left.min(Duration::from_millis(200)))?;
        }
        let event = JobEvent::NodeJoined { node: node.clone(), token: self.token.clone() };
        let decision = if state.is_lost(node.rank) && state.end().is_none() {
            self.forget_predecessor(0)?;
            log.append(self, &event)?.into_iter().for_each(|event| drop(state.apply(event)));
            state.apply(event)
        } else {
            Decision::Refuse(if state.end().is_some() { Refusal::Ending } else { Refusal::NotLost })
        };
        let refusal = match decision {
            Decision::Admit(ids) => {
                let store = self.rank_store(0)?;
                return Ok(Rejoined { round, log, state, store, ids });
            }
            Decision::Refuse(refusal) => refusal,
            _ => Refusal::Ending,
        };
        round.leave(self);
        let rank = node.rank;
        Err(match refusal {
            Refusal::NotLost => AgentError::NodeRankTaken { rank, host: self.node(rank).host },
            refusal => AgentError::NotAdmitted { rank, reason: reason(refusal) },
        })
    }

    /// Removes the keys that the last will of the former agent of this node has set.
    fn forget_predecessor(&self, round: usize) -> Result<(), AgentError> {
        let keys = ["done", "read"].map(|name| format!("{round}/{name}/{}", self.own.rank));
        keys.iter().try_for_each(|key| self.store()?.delete(key).map(drop).map_err(|e| self.store_failed(e)))
    }
}

const fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotLost => "its agent runs",
        Refusal::Ending => "its ranks are about to end",
        Refusal::NoReplacements => "processes join it only with --elastic MIN:MAX",
        Refusal::TooManyRanks => "as many ranks as --elastic allows run already",
    }
}

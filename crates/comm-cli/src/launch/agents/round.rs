//! One start of all ranks, from the agreement on their store to the agreement on their end.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use comm::tcp::TcpStore;
use comm::{LastWill, Presence, Store};
use serde::{Deserialize, Serialize};

use super::join::encode;
use super::{AgentError, Agents, EventLog, FAREWELL, OPERATION_TIMEOUT, Verdict, await_keys};
use crate::launch::error::LaunchError;

/// The time for which a key is watched: longer than any job runs.
pub(super) const FOREVER: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);
/// The time that agents need in addition to their grace period, to tell each other that their ranks
/// have ended.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// The value of the key of an agent that is present, and of one that has left in order.
const PRESENT: &[u8] = b"present";
const LEFT: &[u8] = b"left";
/// The name of the key of the ranks' store.
pub(super) const START: &str = "start";

/// The store of the ranks of one start, which agent 0 serves.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(in crate::launch) struct RankStore {
    pub(in crate::launch) job: u64,
    pub(in crate::launch) port: u16,
}

/// The nodes that are not waited for when the ranks have ended.
#[derive(Debug, Clone, Default)]
pub(in crate::launch) enum Absent {
    /// None: the loss of a node is an error.
    #[default]
    None,
    /// These were lost, and the others have gone on.
    Lost(Vec<usize>),
    /// All other nodes: this one has gone on without them.
    All,
}

impl Absent {
    fn contains(&self, rank: usize) -> bool {
        matches!(self, Self::Lost(lost) if lost.contains(&rank))
    }
}

/// One start of all ranks, numbered from 0.
#[derive(Debug)]
pub(in crate::launch) struct Round {
    number: usize,
    /// The key that shows that this agent is present.
    alive: String,
    /// Readable when the verdict is known, or when the store is gone.
    presence: Box<dyn Presence>,
}

pub(super) fn alive_key(round: usize, rank: usize) -> String {
    format!("{round}/alive/{rank}")
}

pub(super) fn key(round: usize, name: &str) -> String {
    format!("{round}/{name}")
}

/// The key that the last will of the agent with this token sets, in a start that tolerates
/// failures.
pub(super) fn lost_key(round: usize, token: &str) -> String {
    format!("{round}/lost/{token}")
}

impl Round {
    /// Announces this agent for a start, which ends if this agent does.
    pub(super) fn open(agents: &Agents, number: usize) -> Result<Self, AgentError> {
        // The verdict of the next start too: the agent may end before it announces itself there.
        let verdicts = [key(number, "verdict"), key(number + 1, "verdict")];
        let alive = alive_key(number, agents.own.rank);
        Self::announce(agents, number, alive, &verdicts)
    }

    /// Announces this agent for a start that may go on without it.
    pub(super) fn open_elastic(agents: &Agents, number: usize) -> Result<Self, AgentError> {
        Self::announce(agents, number, key(number, &format!("agent/{}", agents.token)), &[])
    }

    /// Announces this agent with the key `alive`. If it ends without a word, the store also sets
    /// these `verdicts`.
    fn announce(
        agents: &Agents,
        number: usize,
        alive: String,
        verdicts: &[String],
    ) -> Result<Self, AgentError> {
        let store = agents.store()?;
        let (rank, failed) = (agents.own.rank, |error| agents.store_failed(error));
        let own = [
            lost_key(number, &agents.token),
            key(number, &format!("done/{rank}")),
            key(number, &format!("read/{rank}")),
        ];
        let keys: Vec<&str> = own.iter().chain(verdicts).map(String::as_str).collect();
        let lost = encode(&Verdict::Lost { node: agents.own.clone() });
        let will = LastWill { condition: (&alive, PRESENT), keys: &keys, value: &lost };
        let presence = store.register_last_will(&will, &key(number, "verdict"), FOREVER).map_err(failed)?;
        let presence = presence.ok_or_else(|| agents.lost(0))?;
        store.set(&alive, PRESENT).map_err(failed)?;
        Ok(Self { number, alive, presence })
    }

    /// Takes this agent off the list of those that are missed when they end.
    pub(super) fn leave(self, agents: &Agents) {
        if let Ok(store) = agents.store_of(&self) {
            // If the store is gone, nobody reads it.
            let _ = store.set(&self.alive, LEFT);
        }
    }

    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Returns whether the store of the agents is there.
    pub(in crate::launch) fn is_open(&self) -> bool {
        self.presence.poll().is_ok()
    }

    /// Returns an error if an agent was lost, or does not wait any longer.
    pub(super) fn check(&self, agents: &Agents) -> Result<(), AgentError> {
        match self.verdict(agents) {
            Some(Verdict::Lost { node }) => Err(AgentError::Lost { node }),
            Some(Verdict::Failed { node, reason }) => Err(AgentError::Failed { node, reason }),
            _ => Ok(()),
        }
    }

    /// Readable when there may be a verdict.
    pub(in crate::launch) fn descriptor(&self) -> BorrowedFd<'_> {
        self.presence.descriptor()
    }

    /// Returns the verdict, if there is one. If the store is gone, so is agent 0.
    pub(in crate::launch) fn verdict(&self, agents: &Agents) -> Option<Verdict> {
        let lost = || Verdict::Lost { node: agents.node(0) };
        match self.presence.poll() {
            Ok(value) => value.map(|value| serde_json::from_slice(&value).unwrap_or_else(|_| lost())),
            Err(_) => Some(lost()),
        }
    }
}

impl Agents {
    /// Announces this agent for a start.
    pub(in crate::launch) fn open_round(&mut self, number: usize) -> Result<Round, AgentError> {
        match self.last.take() {
            Some(round) if round.number == number => Ok(round),
            last => {
                let round = Round::open(self, number)?;
                last.into_iter().for_each(|last| last.leave(self));
                Ok(round)
            }
        }
    }

    /// Waits for the other agents, and returns the store of the ranks, which agent 0 serves.
    pub(in crate::launch) fn agree_on_store(
        &self,
        round: &Round,
        serve: impl FnOnce() -> Result<RankStore, LaunchError>,
    ) -> Result<RankStore, LaunchError> {
        let (store, failed) = (self.store()?, |error| self.store_failed(error));
        let deadline = Instant::now() + self.timeout;
        let check = || match round.verdict(self) {
            Some(verdict) => verdict.outcome(self.own.rank, None),
            None => Ok(()),
        };
        let alive: Vec<String> = (0..self.count()).map(|rank| alive_key(round.number, rank)).collect();
        if !await_keys(store, &alive, deadline, check, failed)? {
            return Err(self.missing(store, &alive).into());
        }
        let start = key(round.number, START);
        if self.own.rank == 0 {
            let ranks = serve()?;
            store.set(&start, &encode(&ranks)).map_err(failed)?;
            return Ok(ranks);
        }
        if !await_keys(store, std::slice::from_ref(&start), deadline, check, failed)? {
            return Err(self.lost(0).into());
        }
        Ok(self.rank_store(round.number)?)
    }

    /// Returns the store of the ranks of a start that has begun.
    pub(super) fn rank_store(&self, round: usize) -> Result<RankStore, AgentError> {
        let ranks = self.store()?.get(&key(round, START), OPERATION_TIMEOUT);
        let ranks = ranks.map_err(|error| self.store_failed(error))?;
        serde_json::from_slice(&ranks)
            .map_err(|error| self.store_failed(comm::Error::malformed("the store of the ranks", error)))
    }

    /// Begins a start that tolerates failures, once its ranks have a store: from now on, it does
    /// not end if this agent does.
    pub(in crate::launch) fn begin_elastic(&self, round: Round) -> Result<(Round, EventLog), AgentError> {
        let elastic = Round::open_elastic(self, round.number)?;
        round.leave(self);
        let mut log = EventLog::open(self, &elastic, 0)?;
        for (rank, entry) in self.entries.iter().enumerate() {
            log.watch_agent(self, self.node(rank), entry.token.clone())?;
        }
        Ok((elastic, log))
    }

    /// Tells the other agents that all ranks of this node have exited with code 0.
    pub(in crate::launch) fn publish_success(&self, round: &Round) -> Result<(), AgentError> {
        let (store, failed) = (self.store_of(round)?, |error| self.store_failed(error));
        let succeeded = store.add(&key(round.number, "succeeded"), 1).map_err(failed)?;
        if usize::try_from(succeeded) == Ok(self.count()) {
            self.publish_verdict(round, &Verdict::Succeeded);
        }
        Ok(())
    }

    /// Tells the other agents the cause for which the ranks of this node are terminated.
    pub(in crate::launch) fn publish(&self, round: &Round, cause: &LaunchError) {
        self.publish_verdict(round, &Verdict::of(cause, self.own.clone()));
    }

    /// Tells the other agents why this one does not wait for the start.
    pub(super) fn publish_failure(&self, round: &Round, error: &AgentError) {
        let failed = Verdict::Failed { node: self.own.clone(), reason: error.to_string() };
        self.publish_verdict(round, &failed);
    }

    /// The first verdict counts.
    pub(in crate::launch) fn publish_verdict(&self, round: &Round, verdict: &Verdict) {
        if let Ok(store) = self.store_of(round) {
            // If the store is gone, every agent takes that for the verdict.
            let _ = store.compare_set(&key(round.number, "verdict"), b"", &encode(verdict));
        }
    }

    /// Waits until the ranks of all agents have ended, and returns the outcome that all agents
    /// return. `own` is the error of this node, and `absent` the nodes that are not waited for.
    pub(in crate::launch) fn end(
        &mut self,
        round: Round,
        (own, absent): (Option<LaunchError>, Absent),
        grace: Duration,
    ) -> Result<(), LaunchError> {
        let agreed = match own {
            own if matches!(absent, Absent::All) => own.map_or(Ok(()), Err),
            // There is no verdict to wait for.
            Some(LaunchError::Agents(error @ AgentError::Missing { .. })) => Err(error.into()),
            own => self
                .agree_on_end(&round, own.as_ref(), &absent, grace)
                .map_err(LaunchError::from)
                .and_then(|verdict| verdict.outcome(self.own.rank, own)),
        };
        self.last = Some(round);
        agreed
    }

    fn agree_on_end(
        &self,
        round: &Round,
        own: Option<&LaunchError>,
        absent: &Absent,
        grace: Duration,
    ) -> Result<Verdict, AgentError> {
        let (number, failed) = (round.number, |error| self.store_failed(error));
        let store = self.store_of(round)?;
        let (common, earlier) = (key(number, "verdict"), key(number, "earlier"));
        let verdict = self.read_verdict(store, &common)?;
        if verdict.is_consequence_of(own)
            && let Some(own) = own
        {
            let own = encode(&Verdict::of(own, self.own.clone()));
            store.compare_set(&earlier, b"", &own).map_err(failed)?;
        }
        let keys = |name: &str| -> Vec<String> {
            let present = (0..self.count()).filter(|rank| !absent.contains(*rank));
            present.map(|rank| key(number, &format!("{name}/{rank}"))).collect()
        };
        let (done, read) = (keys("done"), keys("read"));
        let own_key = |name: &str| key(number, &format!("{name}/{}", self.own.rank));
        store.set(&own_key("done"), LEFT).map_err(failed)?;
        let deadline = Instant::now() + grace.saturating_add(END_TIMEOUT).min(FOREVER);
        await_keys::<AgentError>(store, &done, deadline, || Ok(()), failed)?;
        let agreed = match verdict {
            Verdict::Succeeded => Ok(verdict),
            _ => match self.first_lost(store, &done)?.filter(|_| matches!(absent, Absent::None)) {
                Some(rank) => Err(self.lost(rank)),
                None if store.check(&[&earlier]).map_err(failed)? => self.read_verdict(store, &earlier),
                None => Ok(verdict),
            },
        };
        store.set(&own_key("read"), LEFT).map_err(failed)?;
        if self.own.rank == 0 {
            // The store ends with this process.
            await_keys::<AgentError>(store, &read, Instant::now() + FAREWELL, || Ok(()), failed)?;
        }
        agreed
    }

    /// Returns the store, or an error if it is gone. That is known before an operation would find
    /// out, which waits for its own deadline if the host of the store does not answer.
    fn store_of(&self, round: &Round) -> Result<&TcpStore, AgentError> {
        round.presence.poll().map_err(|error| self.store_failed(error))?;
        self.store()
    }

    fn read_verdict(&self, store: &TcpStore, key: &str) -> Result<Verdict, AgentError> {
        let value = store.get(key, OPERATION_TIMEOUT).map_err(|error| self.store_failed(error))?;
        let malformed = |error| self.store_failed(comm::Error::malformed("the end of a start", error));
        serde_json::from_slice(&value).map_err(malformed)
    }

    /// Returns the first agent that has not told the others that its ranks have ended.
    fn first_lost(&self, store: &TcpStore, done: &[String]) -> Result<Option<usize>, AgentError> {
        for (rank, done) in done.iter().enumerate() {
            match store.get(done, Duration::ZERO) {
                Ok(value) if value == LEFT => {}
                Ok(_) | Err(comm::Error::Timeout { .. }) => return Ok(Some(rank)),
                Err(error) => return Err(self.store_failed(error)),
            }
        }
        Ok(None)
    }
}

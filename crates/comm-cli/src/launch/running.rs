//! The ranks of this host while they run.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::Launch;
use super::agents::{Absent, Agents, EventLog, Node, NodeChange, Round, Verdict};
use super::elastic::{Decision, ElasticJob, JobEvent};
use super::environment::Job;
use super::error::{LaunchError, RankFailure, system};
use super::events::{Consequence, Events, Others};
use super::process::RankProcess;
use super::relay::{Relay, Source};
use super::store::JoinList;

/// The interval between checks whether the group of the ranks has any member left.
const GROUP_CHECK: Duration = Duration::from_millis(500);

/// A launch whose ranks run.
pub(super) struct Running<'a> {
    pub(super) launch: &'a Launch,
    pub(super) job: &'a Job,
    pub(super) relays: Vec<Relay>,
    /// The processes of all hosts, or of this one, if a failure ends all others at once.
    pub(super) state: ElasticJob,
    /// The processes that wait to join the group. `None` if there are none, or if the host of the
    /// store is lost.
    pub(super) join_list: Option<JoinList>,
    /// The time of the last check of the group.
    pub(super) checked: Option<Instant>,
    pub(super) others: Option<OtherNodes<'a>>,
}

/// The other hosts, through their agents.
pub(super) struct OtherNodes<'a> {
    pub(super) agents: &'a Agents,
    pub(super) round: &'a Round,
    /// The events of all hosts, if they tolerate failures.
    pub(super) log: Option<EventLog>,
    /// Whether the host of the store is lost, so that this one goes on without the others.
    pub(super) is_alone: bool,
}

impl Running<'_> {
    /// Relays outputs, if they are tagged.
    pub(super) fn relay(&mut self, outputs: Vec<Source>) -> Result<(), LaunchError> {
        if !outputs.is_empty() {
            self.relays.push(Relay::start(outputs).map_err(system("relay output"))?);
        }
        Ok(())
    }

    /// Returns whether the host of the store is lost, and this one goes on without the others.
    pub(super) fn is_alone(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.is_alone)
    }

    /// Returns the nodes that are not waited for at the end.
    pub(super) fn absent(&self) -> Absent {
        match &self.others {
            Some(others) if others.is_alone => Absent::All,
            Some(others) if others.log.is_some() => Absent::Lost(self.state.lost_nodes()),
            _ => Absent::None,
        }
    }

    /// Returns whether a rank that has failed is of this host.
    pub(super) fn is_own(&self, failure: &RankFailure) -> bool {
        failure.node.is_none() || failure.node.as_ref() == self.node()
    }

    /// Returns the outcome of this host once its ranks have ended without a reason to terminate
    /// others. Without the others, it has failed if all of its ranks have.
    pub(super) fn own_outcome(&self) -> Result<(), LaunchError> {
        let node = self.node().filter(|_| self.is_alone());
        let failure = node.and_then(|node| self.state.first_failure_of(node.rank));
        failure.map_or(Ok(()), |failure| Err(LaunchError::RankFailed(failure.clone())))
    }

    /// Returns this node, if other agents see its events.
    fn node(&self) -> Option<&Node> {
        self.others.as_ref().filter(|others| others.log.is_some() || others.is_alone).map(|o| o.agents.own())
    }

    /// Applies an event of this host, after those that other hosts have seen before it.
    fn record(&mut self, event: JobEvent) -> Decision {
        if let Some(OtherNodes { agents, log: Some(log), .. }) = &mut self.others {
            match log.append(agents, &event) {
                Ok(earlier) => earlier.into_iter().for_each(|event| drop(self.apply(event))),
                Err(_) => self.go_on_alone(),
            }
        }
        self.apply(event)
    }

    fn apply(&mut self, event: JobEvent) -> Decision {
        if matches!(&event, JobEvent::NodeLost { node, .. } if self.node() == Some(node)) {
            // The others believe that this host is lost.
            self.go_on_alone();
            return Decision::GoOn;
        }
        let change = event.clone();
        let decision = self.state.apply(event);
        let ranks_left = self.state.ranks_left();
        match (change, &decision) {
            (JobEvent::NodeLost { node, .. }, Decision::GoOn) => {
                (self.launch.on_node_change)(&NodeChange::Lost { node, ranks_left });
            }
            (JobEvent::NodeJoined { node, token }, Decision::Admit(_)) => {
                if let Some(OtherNodes { agents, log: Some(log), .. }) = &mut self.others {
                    // If this fails, the store is gone, which is noticed with the next event.
                    let _ = log.watch_agent(agents, node.clone(), token);
                }
                (self.launch.on_node_change)(&NodeChange::Joined { node, ranks_left });
            }
            _ => {}
        }
        decision
    }

    /// Goes on without the agents of other hosts, because the agent of node 0, which serves the
    /// stores, cannot be reached. Ranks that fail from now on are not replaced.
    fn go_on_alone(&mut self) {
        let Some(others) = &mut self.others else { return };
        if others.is_alone {
            return;
        }
        (others.is_alone, others.log) = (true, None);
        let (node, token) = others.agents.store_node();
        self.join_list = None;
        self.state.stop_replacing();
        self.apply(JobEvent::NodeLost { node, token });
    }

    /// Returns the outcome of the launch, if it is known.
    fn outcome(&self) -> Option<Result<(), LaunchError>> {
        self.state.end().cloned().map(super::elastic::End::outcome)
    }

    fn cause(&self) -> Option<LaunchError> {
        self.outcome().and_then(Result::err)
    }

    fn replace(&mut self, rank: usize, id: u64) -> Result<RankProcess, LaunchError> {
        let (process, outputs) = self.launch.spawn(self.job, rank - self.job.place.first_rank, Some(id))?;
        self.relay(outputs.collect())?;
        Ok(process)
    }
}

impl Events for Running<'_> {
    fn failed(&mut self, mut failure: RankFailure) -> Consequence {
        let (rank, report) = (failure.rank, failure.clone());
        failure.node = self.node().cloned();
        failure.last_lines = self.launch.last_lines(self.job, rank);
        let decision = self.record(JobEvent::RankFailed(failure));
        match decision {
            Decision::GoOn | Decision::Replace(_) => (self.launch.on_loss)(&report),
            _ => {}
        }
        let cause = match decision {
            Decision::End => self.cause(),
            Decision::Replace(_) => self.check_group(),
            _ => None,
        };
        match (cause, decision) {
            (Some(cause), _) => Consequence::End(cause),
            (None, Decision::Replace(id)) => {
                self.replace(rank, id).map_or_else(Consequence::End, Consequence::Replaced)
            }
            (None, _) => Consequence::GoOn,
        }
    }

    fn first_success(&mut self) {
        let node = self.node().map_or(0, |node| node.rank);
        self.record(JobEvent::RankSucceeded { node });
        if let Some(list) = &mut self.join_list {
            // If this fails, processes that wait to join end at their deadline.
            let _ = list.close();
        }
    }

    fn next_check(&self) -> Option<Duration> {
        // One agent checks for all hosts.
        let checks = self.join_list.is_some() && self.node().is_none_or(|node| node.rank == 0);
        let passed = self.checked.map_or(GROUP_CHECK, |checked| checked.elapsed());
        (checks && self.state.is_group_in_doubt()).then(|| GROUP_CHECK.saturating_sub(passed))
    }

    fn check_group(&mut self) -> Option<LaunchError> {
        if !self.state.is_group_in_doubt() {
            return None;
        }
        self.checked = Some(Instant::now());
        // If the store cannot be reached, the processes that wait end at their deadline.
        let admissions = self.join_list.as_mut()?.admissions(self.state.joining_ids()).ok()?;
        let event = self.state.group_lost(&admissions.admitted).filter(|_| !admissions.has_others)?;
        self.record(event);
        self.cause()
    }

    fn others(&mut self) -> Option<&mut dyn Others> {
        let has_others = self.others.as_ref().is_some_and(|others| !others.is_alone);
        has_others.then_some(self as &mut dyn Others)
    }
}

impl Others for Running<'_> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let OtherNodes { round, log, .. } = self.others.as_ref().filter(|others| !others.is_alone)?;
        Some(log.as_ref().map_or_else(|| round.descriptor(), EventLog::descriptor))
    }

    fn poll(&mut self) -> Option<Result<(), LaunchError>> {
        let OtherNodes { agents, round, log, .. } = self.others.as_mut()?;
        let (agents, round) = (*agents, *round);
        let Some(log) = log else {
            return round.verdict(agents).map(|verdict| verdict.outcome(agents.own().rank, None));
        };
        let (lost, mut events) = match log.lost(agents).and_then(|lost| Ok((lost, log.read(agents)?))) {
            Ok(changes) if round.is_open() => changes,
            _ => {
                self.go_on_alone();
                return self.outcome();
            }
        };
        events.drain(..).for_each(|event| drop(self.apply(event)));
        for (node, token) in lost {
            self.record(JobEvent::NodeLost { node, token });
        }
        match self.outcome() {
            Some(Ok(())) => {
                agents.publish_verdict(round, &Verdict::Succeeded);
                Some(Ok(()))
            }
            None if !self.is_alone() => {
                round.verdict(agents).map(|verdict| verdict.outcome(agents.own().rank, None))
            }
            outcome => outcome,
        }
    }

    fn ended(&mut self) -> Result<(), LaunchError> {
        let Some(OtherNodes { agents, round, log, .. }) = &self.others else { return Ok(()) };
        if log.is_none() {
            return Ok(agents.publish_success(round)?);
        }
        let node = agents.own().rank;
        self.record(JobEvent::NodeEnded { node });
        Ok(())
    }

    fn failed(&self, cause: &LaunchError) {
        if let Some(OtherNodes { agents, round, .. }) = &self.others {
            agents.publish(round, cause);
        }
    }
}

//! The processes of a launch whose ranks may fail, and the consequences of each failure.
//!
//! This is a state machine without effects: agents of several hosts apply the same events in the
//! same order, and so come to the same decisions.

use serde::{Deserialize, Serialize};

use super::agents::{AgentError, Node};
use super::error::{LaunchError, RankFailure};

/// The numbers of ranks with which a launch goes on, over all hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The least number of ranks that have not failed.
    pub(super) ranks_min: usize,
    /// The number of ranks up to which failed ones are replaced.
    pub(super) ranks_max: usize,
    /// The largest number of replacements.
    pub(super) replacements: usize,
}

/// A change of the processes of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JobEvent {
    /// A process has failed.
    RankFailed(RankFailure),
    /// A rank of this node has exited with code 0, as its first one.
    RankSucceeded { node: usize },
    /// All processes of this node have ended.
    NodeEnded { node: usize },
    /// The agent with this token was killed, or its host does not answer.
    NodeLost { node: Node, token: String },
    /// Another agent with this token has come to a node that was lost.
    NodeJoined { node: Node, token: String },
    /// No rank is left in the group that the processes which wait could join. The number is that of
    /// the failure that led to it.
    GroupLost { failure: usize },
}

/// The consequence of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The others go on.
    GoOn,
    /// The process is replaced by one with this id.
    Replace(u64),
    /// The node starts processes with these ids.
    Admit(Vec<u64>),
    /// The agent may not join.
    Refuse(Refusal),
    /// Nothing, because the process came too late, or its node is no longer part of the launch.
    Ignore,
    /// The launch ends; see [`ElasticJob::end`].
    End,
}

/// The reason why an agent may not join a launch that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    NotLost,
    Ending,
    NoReplacements,
    TooManyRanks,
}

/// The end of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    RankFailed(RankFailure),
    NodeLost(Node),
}

impl End {
    pub(super) fn outcome(self) -> Result<(), LaunchError> {
        match self {
            Self::Succeeded => Ok(()),
            Self::RankFailed(failure) => Err(LaunchError::RankFailed(failure)),
            Self::NodeLost(node) => Err(AgentError::Lost { node }.into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// A member of the first group.
    First,
    /// A process that joins the group, with its id.
    Joining(u64),
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Running,
    Ended,
    Lost,
}

#[derive(Debug, Clone)]
struct NodeProcesses {
    token: String,
    first_rank: usize,
    processes: Vec<Process>,
    state: NodeState,
}

/// A failure, and the process that was started for it.
#[derive(Debug, Clone)]
struct Failed {
    failure: RankFailure,
    replacement: Option<u64>,
}

/// The processes of a launch on all hosts.
#[derive(Debug, Clone)]
pub(super) struct ElasticJob {
    limits: Limits,
    nodes: Vec<NodeProcesses>,
    failures: Vec<Failed>,
    /// The last id of a process that joins.
    last_id: u64,
    replaced: usize,
    has_succeeded: bool,
    end: Option<End>,
}

impl ElasticJob {
    /// Creates the state of a launch whose nodes have these tokens and numbers of ranks, from the
    /// first rank on.
    pub(super) fn new(
        limits: Limits,
        mut first_rank: usize,
        nodes: impl IntoIterator<Item = (String, usize)>,
    ) -> Self {
        let node = |(token, ranks): (String, usize)| {
            let first = first_rank;
            first_rank += ranks;
            let processes = vec![Process::First; ranks];
            NodeProcesses { token, first_rank: first, processes, state: NodeState::Running }
        };
        let nodes = nodes.into_iter().map(node).collect();
        Self { limits, nodes, failures: Vec::new(), last_id: 0, replaced: 0, has_succeeded: false, end: None }
    }

    /// Returns the end of the launch, once it is known.
    pub(super) const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Returns the number of ranks that have not failed.
    pub(super) fn ranks_left(&self) -> usize {
        self.processes().filter(|process| **process != Process::Failed).count()
    }

    /// Returns whether only processes that join the group run, so that it may have no member left.
    pub(super) fn is_group_in_doubt(&self) -> bool {
        let is_first = |process: &Process| *process == Process::First;
        self.end.is_none() && !self.has_succeeded && self.last_id > 0 && !self.processes().any(is_first)
    }

    /// Returns the ids of all processes that were started to join the group.
    pub(super) const fn joining_ids(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.last_id
    }

    /// Returns the event that ends the launch if none of the processes that run is among those
    /// that the group has `admitted`. The first failure after the last one whose replacement was
    /// admitted is the cause.
    pub(super) fn group_lost(&self, admitted: &[u64]) -> Option<JobEvent> {
        let is_member = |process: &Process| match process {
            Process::First => true,
            Process::Joining(id) => admitted.contains(id),
            Process::Failed => false,
        };
        if self.failures.is_empty() || self.processes().any(is_member) {
            return None;
        }
        let has_recovered = |failed: &Failed| failed.replacement.is_some_and(|id| admitted.contains(&id));
        let next = self.failures.iter().rposition(has_recovered).map_or(0, |at| at + 1);
        Some(JobEvent::GroupLost { failure: next.min(self.failures.len() - 1) })
    }

    /// Returns the first failure of a rank of a node that was not replaced, if no rank of any node
    /// has succeeded.
    pub(super) fn first_failure_of(&self, node: usize) -> Option<&RankFailure> {
        let mut last = self.failures.iter().filter(|failed| failed.replacement.is_none());
        let first = last.find(|failed| node_of(&failed.failure) == node);
        first.filter(|_| !self.has_succeeded).map(|failed| &failed.failure)
    }

    /// Returns the last lines of a rank that has failed and was replaced, as far as they were known
    /// then: its replacement writes to the same file.
    pub(super) fn last_lines(&self, failure: &RankFailure) -> Option<Vec<String>> {
        let mut replaced = self.failures.iter().filter(|own| own.replacement.is_some());
        let is_same = |own: &&Failed| (own.failure.rank, own.failure.pid) == (failure.rank, failure.pid);
        replaced.find(is_same).map(|own| own.failure.last_lines.clone())
    }

    /// Returns the nodes that are lost.
    pub(super) fn lost_nodes(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.is_lost(*node)).collect()
    }

    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.nodes.get(node).is_none_or(|node| node.state == NodeState::Lost)
    }

    /// Lets no further process take the place of one that fails.
    pub(super) const fn stop_replacing(&mut self) {
        self.limits.replacements = 0;
    }

    /// Applies an event. After the end, nothing changes.
    pub(super) fn apply(&mut self, event: JobEvent) -> Decision {
        if self.end.is_some() {
            return Decision::Ignore;
        }
        match event {
            JobEvent::RankFailed(failure) => self.on_failure(failure),
            JobEvent::RankSucceeded { .. } => {
                self.has_succeeded = true;
                Decision::GoOn
            }
            JobEvent::NodeEnded { node } => {
                self.set_state(node, NodeState::Ended);
                self.end_if_all_have()
            }
            JobEvent::NodeLost { node, token } => self.on_lost_node(node, &token),
            JobEvent::NodeJoined { node, token } => self.on_joined_node(&node, token),
            JobEvent::GroupLost { failure } => {
                self.end = self.failures.get(failure).map(|failed| End::RankFailed(failed.failure.clone()));
                self.decision()
            }
        }
    }

    fn on_failure(&mut self, failure: RankFailure) -> Decision {
        let Some(process) = self.process_mut(&failure) else { return Decision::Ignore };
        let former = std::mem::replace(process, Process::Failed);
        if self.has_succeeded && matches!(former, Process::Joining(_)) {
            // It came too late.
            return Decision::Ignore;
        }
        let left = self.ranks_left();
        let is_replaced =
            !self.has_succeeded && left < self.limits.ranks_max && self.replaced < self.limits.replacements;
        if is_replaced {
            self.replaced += 1;
            self.last_id += 1;
            let id = self.last_id;
            if let Some(process) = self.process_mut(&failure) {
                *process = Process::Joining(id);
            }
            self.failures.push(Failed { failure, replacement: Some(id) });
            return Decision::Replace(id);
        }
        if left < self.limits.ranks_min {
            self.end = Some(End::RankFailed(failure.clone()));
        }
        self.failures.push(Failed { failure, replacement: None });
        self.decision()
    }

    fn on_lost_node(&mut self, lost: Node, token: &str) -> Decision {
        let Some(node) = self.nodes.get_mut(lost.rank).filter(|node| node.token == token) else {
            return Decision::Ignore;
        };
        if node.state == NodeState::Running {
            node.processes.fill(Process::Failed);
        }
        node.state = NodeState::Lost;
        if self.ranks_left() < self.limits.ranks_min {
            self.end = Some(End::NodeLost(lost));
            return Decision::End;
        }
        self.end_if_all_have()
    }

    fn on_joined_node(&mut self, node: &Node, token: String) -> Decision {
        if !self.is_lost(node.rank) {
            return Decision::Refuse(Refusal::NotLost);
        }
        let free = self.limits.ranks_max.saturating_sub(self.ranks_left());
        if self.has_succeeded {
            return Decision::Refuse(Refusal::Ending);
        }
        if self.limits.ranks_max == 0 {
            return Decision::Refuse(Refusal::NoReplacements);
        }
        let Some(joined) = self.nodes.get_mut(node.rank).filter(|_| free > 0) else {
            return Decision::Refuse(Refusal::TooManyRanks);
        };
        let ids: Vec<u64> = (self.last_id + 1..).take(joined.processes.len().min(free)).collect();
        (joined.token, joined.state) = (token, NodeState::Running);
        joined.processes.iter_mut().zip(&ids).for_each(|(process, id)| *process = Process::Joining(*id));
        self.last_id += ids.len() as u64;
        Decision::Admit(ids)
    }

    fn end_if_all_have(&mut self) -> Decision {
        if self.nodes.iter().all(|node| node.state != NodeState::Running) {
            self.end = Some(End::Succeeded);
        }
        self.decision()
    }

    const fn decision(&self) -> Decision {
        if self.end.is_some() { Decision::End } else { Decision::GoOn }
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.nodes.iter().flat_map(|node| &node.processes)
    }

    /// Returns the process that has failed, unless its node is lost.
    fn process_mut(&mut self, failure: &RankFailure) -> Option<&mut Process> {
        let node = self.nodes.get_mut(node_of(failure)).filter(|node| node.state == NodeState::Running)?;
        node.processes.get_mut(failure.rank.checked_sub(node.first_rank)?)
    }

    fn set_state(&mut self, node: usize, state: NodeState) {
        if let Some(node) = self.nodes.get_mut(node).filter(|node| node.state == NodeState::Running) {
            node.state = state;
        }
    }
}

/// Returns the node of a rank that has failed: the only one, unless the launch has several.
fn node_of(failure: &RankFailure) -> usize {
    failure.node.as_ref().map_or(0, |node| node.rank)
}

#[cfg(test)]
mod tests;

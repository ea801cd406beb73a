//! The end of a start, as agents tell it each other.

use serde::{Deserialize, Serialize};

use super::{AgentError, Node};
use crate::launch::error::{LaunchError, ProcessExit, RankFailure};

/// The reason why a start has ended on all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) enum Verdict {
    /// Every rank has exited with code 0.
    Succeeded,
    /// A rank has failed.
    RankFailed { node: Node, rank: usize, pid: u32, exit: ProcessExit },
    /// A signal stopped an agent.
    Interrupted { node: Node, signal: i32 },
    /// An agent could not start or watch its ranks.
    Failed { node: Node, reason: String },
    /// An agent has ended without a word.
    Lost { node: Node },
}

impl Verdict {
    /// Returns the verdict of a node whose own ranks have ended with this error.
    pub(super) fn of(error: &LaunchError, node: Node) -> Self {
        match error {
            LaunchError::RankFailed(RankFailure { rank, pid, exit, node: other, .. }) => {
                let node = other.clone().unwrap_or(node);
                Self::RankFailed { node, rank: *rank, pid: *pid, exit: *exit }
            }
            LaunchError::Interrupted { signal } => Self::Interrupted { node, signal: *signal },
            LaunchError::Agents(AgentError::Lost { node }) => Self::Lost { node: node.clone() },
            other => Self::Failed { node, reason: crate::program::chain(other) },
        }
    }

    /// Returns the outcome of the launch. `own` is the error of this node, if it had one.
    pub(in crate::launch) fn outcome(
        self,
        own_rank: usize,
        own: Option<LaunchError>,
    ) -> Result<(), LaunchError> {
        Err(match (self, own) {
            (Self::Succeeded, _) => return Ok(()),
            (Self::RankFailed { node, rank, pid, exit }, own) => {
                let last_lines = match own {
                    Some(LaunchError::RankFailed(own)) if (own.rank, own.pid) == (rank, pid) => {
                        own.last_lines
                    }
                    _ => Vec::new(),
                };
                LaunchError::RankFailed(RankFailure { rank, pid, exit, node: Some(node), last_lines })
            }
            (Self::Interrupted { node, .. } | Self::Failed { node, .. }, Some(own))
                if node.rank == own_rank =>
            {
                own
            }
            (Self::Interrupted { node, signal }, _) => AgentError::Interrupted { node, signal }.into(),
            (Self::Failed { node, reason }, _) => AgentError::Failed { node, reason }.into(),
            (Self::Lost { node }, _) => AgentError::Lost { node }.into(),
        })
    }

    /// Returns whether a rank of this node, which has ended with `own`, is the cause of this
    /// verdict. A rank that is killed breaks connections, and ranks on other hosts may exit with
    /// an error before the agent of the killed one has seen its end.
    pub(super) fn is_consequence_of(&self, own: Option<&LaunchError>) -> bool {
        let is_killed = |error: &LaunchError| {
            matches!(
                error,
                LaunchError::RankFailed(RankFailure { exit: ProcessExit::Signal(_), node: None, .. })
            )
        };
        matches!(self, Self::RankFailed { exit: ProcessExit::Code(_), .. }) && own.is_some_and(is_killed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(rank: usize, exit: ProcessExit) -> (Verdict, LaunchError) {
        let failure = RankFailure { rank, pid: 7, exit, node: None, last_lines: vec!["why".to_owned()] };
        let error = LaunchError::RankFailed(failure);
        (Verdict::of(&error, Node { rank, host: "b".to_owned() }), error)
    }

    #[test]
    fn a_killed_rank_is_the_cause_of_the_exit_of_another_and_not_the_other_way_round() {
        let (exited, exit) = failed(0, ProcessExit::Code(1));
        let (killed, kill) = failed(1, ProcessExit::Signal(9));
        assert!(exited.is_consequence_of(Some(&kill)));
        assert!(!killed.is_consequence_of(Some(&exit)));
        assert!(!exited.is_consequence_of(Some(&exit)) && !killed.is_consequence_of(Some(&kill)));
        assert!(!exited.is_consequence_of(None) && !Verdict::Succeeded.is_consequence_of(Some(&kill)));
    }

    #[test]
    fn the_node_of_a_failure_keeps_the_last_lines_and_its_own_error() {
        let (verdict, own) = failed(3, ProcessExit::Code(1));
        let Err(LaunchError::RankFailed(failure)) = verdict.clone().outcome(3, Some(own)) else {
            panic!("another error")
        };
        assert_eq!((failure.rank, failure.last_lines.len()), (3, 1));
        assert_eq!(failure.node, Some(Node { rank: 3, host: "b".to_owned() }));
        let Err(LaunchError::RankFailed(failure)) =
            verdict.outcome(0, Some(failed(0, ProcessExit::Code(1)).1))
        else {
            panic!("another error")
        };
        assert!(failure.last_lines.is_empty());
        let missing = || LaunchError::ProgramNotFound { program: "x".into() };
        let verdict = Verdict::of(&missing(), Node { rank: 1, host: "b".to_owned() });
        assert_eq!(verdict.clone().outcome(1, Some(missing())).map_err(|error| error.exit_code()), Err(127));
        let other = verdict.outcome(0, None).map_err(|error| error.to_string());
        assert_eq!(other, Err("node 1 (b) failed: program not found: x".to_owned()));
    }
}

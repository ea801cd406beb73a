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
            LaunchError::RankFailed(RankFailure { rank, pid, exit, .. }) => {
                Self::RankFailed { node, rank: *rank, pid: *pid, exit: *exit }
            }
            LaunchError::Interrupted { signal } => Self::Interrupted { node, signal: *signal },
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

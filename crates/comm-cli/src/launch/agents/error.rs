//! The errors between agents.

use std::time::Duration;

use super::nodes::Node;
use crate::launch::error::SignalName;

/// The error of a launch on several hosts that is not the failure of a rank.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The node rank is not less than the number of nodes.
    #[error("node rank {rank} is out of range: of {nodes} nodes, the last has node rank {}", nodes.saturating_sub(1))]
    NodeRank {
        /// The node rank.
        rank: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// On several hosts, a launch either tolerates failures or restarts all ranks.
    #[error(
        "--elastic MIN on several hosts does not restart all ranks: leave out --max-restarts, or let --elastic MIN:MAX replace ranks"
    )]
    ElasticRestarts,
    /// An agent without a node rank has come to a job that runs.
    #[error("the job runs already: to take the place of a host that was lost, start with its --node-rank")]
    NodeRankMissing,
    /// The agent of a node that was lost cannot join the ranks that run.
    #[error("node rank {rank} cannot join the running job: {reason}")]
    NotAdmitted {
        /// The node rank.
        rank: usize,
        /// The reason.
        reason: &'static str,
    },
    /// The address of the rendezvous cannot be used.
    #[error("cannot use the rendezvous at {address}: {reason}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The store at the address cannot be served, reached or used.
    #[error("cannot meet the other agents at {address}: {error}")]
    Store {
        /// The address.
        address: String,
        /// The error of the store.
        error: Box<comm::Error>,
    },
    /// Another agent has the same node rank.
    #[error("node rank {rank} is taken by an agent on {}: start each agent with its own --node-rank", host.escape_debug())]
    NodeRankTaken {
        /// The node rank.
        rank: usize,
        /// The host of the other agent.
        host: String,
    },
    /// More agents than nodes have come.
    #[error(
        "all {nodes} nodes have come already: start one agent per node, or raise --nnodes on all of them"
    )]
    TooManyNodes {
        /// The number of nodes.
        nodes: usize,
    },
    /// A setting differs from agent 0's.
    #[error("{setting} is {ours} here, and {theirs} on node 0: start all agents with the same value")]
    SettingDiffers {
        /// The name of the setting.
        setting: String,
        /// The value of this agent.
        ours: String,
        /// The value of agent 0.
        theirs: String,
    },
    /// Some agents did not come in time.
    #[error(
        "no agent with node rank {} has come to {address} after {after:?}: start `commctl run` there, or check the network",
        list(missing)
    )]
    Missing {
        /// The node ranks of those that did not come.
        missing: Vec<usize>,
        /// The address of the rendezvous.
        address: String,
        /// The time for which this agent has waited.
        after: Duration,
    },
    /// An agent has ended without a word, or its host does not answer.
    #[error("{node} is lost: its commctl was killed, or the host does not answer")]
    Lost {
        /// The node.
        node: Node,
    },
    /// A signal stopped another agent.
    #[error("{node} was interrupted by {}", SignalName(*signal))]
    Interrupted {
        /// The node.
        node: Node,
        /// The signal.
        signal: i32,
    },
    /// Another agent could not start or watch its ranks.
    #[error("{node} failed: {}", reason.escape_debug())]
    Failed {
        /// The node.
        node: Node,
        /// Its error.
        reason: String,
    },
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

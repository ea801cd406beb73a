//! The hosts of a job, as a user describes them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::AgentError;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The hosts of a job; on each of them, one launcher (an agent) starts ranks.
///
/// All agents get the same number of nodes and the same address. That is an address of the host of
/// node 0, at which its agent serves the store in which agents meet.
///
/// ```
/// use comm_cli::launch::{Launch, Nodes};
///
/// // On the first of two hosts, whose address is 10.0.0.1.
/// let nodes = Nodes::new(2, "10.0.0.1", 29_500).rank(0);
/// let launch = Launch::new("./train").ranks(4).nodes(nodes);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    pub(super) count: usize,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) rank: Option<usize>,
    pub(super) timeout: Duration,
}

impl Nodes {
    /// Describes `count` hosts whose agents meet at this host and port.
    #[must_use]
    pub fn new(count: usize, host: impl Into<String>, port: u16) -> Self {
        Self { count, host: host.into(), port, rank: None, timeout: DEFAULT_TIMEOUT }
    }

    /// Sets the node rank of this host, from 0. By default, the agent on the host with the address
    /// has node rank 0, and the others in the order in which they come.
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Sets the time for which an agent waits for the others, before the first start and before
    /// each restart. The default is 5 minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the error of the store at the address.
    pub(in crate::launch) fn failed(&self, error: comm::Error) -> AgentError {
        AgentError::Store { address: self.address(), error: Box::new(error) }
    }

    /// Parses an entry of an agent in the store at the address.
    pub(super) fn decode<T: for<'de> Deserialize<'de>>(&self, value: &[u8]) -> Result<T, AgentError> {
        serde_json::from_slice(value)
            .map_err(|error| self.failed(comm::Error::malformed("an entry of an agent", error)))
    }

    /// Returns the host of the address.
    pub(in crate::launch) fn host(&self) -> &str {
        &self.host
    }
}

/// A host of a job, such as `node 1 (gpu7)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Node {
    /// The node rank.
    pub rank: usize,
    /// The name of the host.
    pub host: String,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name comes from another host.
        write!(f, "node {} ({})", self.rank, self.host.escape_debug())
    }
}

/// A change of the hosts of a launch that goes on, such as `node 1 (gpu7) is lost, and 4 ranks go
/// on`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// The agent of a node was killed, or its host does not answer.
    Lost {
        /// The node.
        node: Node,
        /// The number of ranks that have not failed, as far as this host knows.
        ranks_left: usize,
    },
    /// Another agent has come to a node that was lost.
    Joined {
        /// The node.
        node: Node,
        /// The number of ranks, with the new ones.
        ranks_left: usize,
    },
}

impl fmt::Display for NodeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { node, ranks_left } if node.rank == 0 => write!(
                f,
                "{node} is lost, and {ranks_left} ranks go on; none is replaced any more, because node 0 serves the store"
            ),
            Self::Lost { node, ranks_left } => write!(f, "{node} is lost, and {ranks_left} ranks go on"),
            Self::Joined { node, ranks_left } => {
                write!(f, "{node} has joined again, with {ranks_left} ranks in all")
            }
        }
    }
}

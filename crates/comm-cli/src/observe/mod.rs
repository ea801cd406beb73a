//! The state of running ranks, as `commctl top` shows it.
//!
//! | part | file |
//! |---|---|
//! | finds the ranks of this host, and asks them | `sockets.rs` |
//! | the answers of the ranks of a host | `answer.rs` |
//! | an agent, which asks those of all hosts | `agent.rs` |

pub(crate) mod agent;
mod answer;
mod sockets;

pub use agent::ask_agent_of;
pub use answer::{HostAnswer, RankAnswer};
pub use sockets::{Launches, find};

/// The largest number of last calls of each communicator that are asked for.
pub const CALLS: usize = 64;

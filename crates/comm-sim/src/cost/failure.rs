//! The errors of a simulation.

use comm_core::Blocks;

use crate::verify::StepLocation;

/// The reason why a program cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A cost is negative or not a number, or hosts have no ranks.
    #[error("the model of the links has a cost that is negative or not a number, or hosts without ranks")]
    Links,
    /// There are more ranks than the simulator can number.
    #[error("{0} ranks are too many to simulate")]
    Ranks(usize),
    /// The program has more steps than the caller allows.
    #[error("the program has more than {limit} steps")]
    TooLong {
        /// The largest allowed number of steps of all ranks together.
        limit: u64,
    },
    /// A peer is not in the group, or is the rank itself.
    #[error("{0}: no such peer")]
    Peer(StepLocation),
    /// A step uses blocks that do not exist.
    #[error("{0}: no such blocks")]
    Blocks(StepLocation),
    /// A receive expects other blocks than were sent.
    #[error("{at} matches a message with blocks {}..{}", .sent.first, .sent.end())]
    Mismatch {
        /// The receive.
        at: StepLocation,
        /// The blocks of the message.
        sent: Blocks,
    },
    /// No rank can continue.
    #[error("deadlock of {ranks} ranks: {}", list(.waiting))]
    Deadlock {
        /// The number of blocked ranks.
        ranks: usize,
        /// A few of the blocked receives: each waits for the rank of the next one, or for a rank
        /// that has ended.
        waiting: Vec<StepLocation>,
    },
    /// Every rank has ended, but a message was not received.
    #[error("rank {to} never receives a message that rank {from} sent to it")]
    Unreceived {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
}

fn list(waiting: &[StepLocation]) -> String {
    let lines: Vec<String> = waiting.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

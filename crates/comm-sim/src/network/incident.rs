//! Faults that happen at a certain moment, and defects of the network itself.

use std::fmt;
use std::time::Duration;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// A rank dies: bytes that have not left it are lost.
    Death {
        /// The rank.
        rank: usize,
    },
    /// The host of a rank loses its power: the rank dies, and no stream ends. The others lose it
    /// after [`FaultPlan::keepalive`](super::FaultPlan::keepalive).
    Vanish {
        /// The rank.
        rank: usize,
    },
    /// The link between two ranks breaks, and loses the bytes in flight.
    Break {
        /// The two ranks.
        between: (usize, usize),
    },
    /// One direction of a link delivers nothing for some time, and everything afterwards. The two
    /// ranks lose each other if it lasts longer than
    /// [`FaultPlan::keepalive`](super::FaultPlan::keepalive).
    Cut {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The duration.
        lasting: Duration,
    },
    /// All threads of a rank stop for some time, as on `SIGSTOP`.
    Stop {
        /// The rank.
        rank: usize,
        /// The duration.
        lasting: Duration,
    },
    /// A rank is slow from now on.
    Slow {
        /// The rank.
        rank: usize,
        /// The average time that each of its operations on transports takes.
        per_operation: Duration,
    },
    /// The clock of a rank jumps forward.
    ClockJump {
        /// The rank.
        rank: usize,
        /// The length of the jump.
        by: Duration,
    },
    /// A byte of the next bytes on this link changes. With
    /// [`FaultPlan::checksums`](super::FaultPlan::checksums), the stream breaks at the receiver.
    Corruption {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// The next bytes on this link arrive twice. With
    /// [`FaultPlan::checksums`](super::FaultPlan::checksums), the stream breaks at the receiver.
    Duplication {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// The connections of a rank to the store break, and the store executes its wills.
    StoreReset {
        /// The rank.
        rank: usize,
    },
    /// The store answers nothing for some time, and everything afterwards.
    StoreStall {
        /// The duration.
        lasting: Duration,
    },
    /// The host of the store dies.
    StoreEnd,
}

impl Incident {
    /// Returns the ranks that other ranks may name because of this fault.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        match *self {
            Self::Death { rank }
            | Self::Vanish { rank }
            | Self::Stop { rank, .. }
            | Self::Slow { rank, .. }
            | Self::ClockJump { rank, .. }
            | Self::StoreReset { rank } => vec![rank],
            Self::StoreStall { .. } | Self::StoreEnd => Vec::new(),
            Self::Break { between: (from, to) }
            | Self::Cut { from, to, .. }
            | Self::Corruption { from, to }
            | Self::Duplication { from, to } => vec![from, to],
        }
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Death { rank } => write!(f, "rank {rank} dies"),
            Self::Vanish { rank } => write!(f, "the host of rank {rank} loses its power"),
            Self::Break { between: (a, b) } => write!(f, "the link between ranks {a} and {b} breaks"),
            Self::Cut { from, to, lasting } => {
                write!(f, "the link from rank {from} to rank {to} delivers nothing for {lasting:?}")
            }
            Self::Stop { rank, lasting } => write!(f, "rank {rank} stops for {lasting:?}"),
            Self::Slow { rank, per_operation } => {
                write!(f, "each operation of rank {rank} takes {per_operation:?} from now on")
            }
            Self::ClockJump { rank, by } => write!(f, "the clock of rank {rank} jumps by {by:?}"),
            Self::Corruption { from, to } => {
                write!(f, "the next bytes from rank {from} to rank {to} are corrupted")
            }
            Self::Duplication { from, to } => {
                write!(f, "the next bytes from rank {from} to rank {to} arrive twice")
            }
            Self::StoreReset { rank } => write!(f, "the connections of rank {rank} to the store break"),
            Self::StoreStall { lasting } => write!(f, "the store answers nothing for {lasting:?}"),
            Self::StoreEnd => f.write_str("the store ends"),
        }
    }
}

/// A defect that no correct transport or store has, for tests that a check can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// The loss of a rank is reported as the loss of the next one.
    WrongRank,
    /// The end of a stream overtakes the bytes before it, such as a goodbye.
    EarlyEnd,
    /// The end of a stream does not arrive.
    NoEnd,
    /// Some notifications that bytes were consumed do not arrive.
    LostCredit,
    /// A byte of some sends changes, and no checksum detects it.
    FlippedByte,
    /// The store loses the last wills of ranks.
    LostWill,
    /// The store compares and sets in two operations.
    SplitCompareSet,
    /// The store sets some keys that do not hold the expected value.
    Overwrite,
}

impl Defect {
    /// All defects of transports.
    pub const ALL: [Self; 5] =
        [Self::WrongRank, Self::EarlyEnd, Self::NoEnd, Self::LostCredit, Self::FlippedByte];

    /// All defects of the store.
    pub const OF_STORE: [Self; 3] = [Self::LostWill, Self::SplitCompareSet, Self::Overwrite];
}

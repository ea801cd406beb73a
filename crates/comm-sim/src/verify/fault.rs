//! The faults that the verifier finds in schedules.

use comm_core::{Action, Blocks, Place, Step};

use super::{Contributors, Required, Spec};

/// A step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepLocation {
    /// The rank.
    pub rank: usize,
    /// The position of the step in the rank's program.
    pub index: usize,
    /// The step.
    pub step: Step,
}

/// The reason why a schedule is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The call itself is invalid.
    #[error("there is no such call: {0}")]
    Spec(Spec),
    /// A peer is not in the group, or is the rank itself.
    #[error("{0}: no such peer")]
    Peer(StepLocation),
    /// A step uses blocks or slots of scratch that do not exist.
    #[error("{0}: blocks or slots out of range")]
    Range(StepLocation),
    /// A step reads blocks from one place and writes them to another that overlaps it.
    #[error("{0}: operands overlap")]
    Overlap(StepLocation),
    /// A step writes to the input.
    #[error("{0}: writes to the input")]
    WritesInput(StepLocation),
    /// A step uses a block that the array does not hold.
    #[error("{at}: the array does not hold block {block}")]
    Absent {
        /// The step.
        at: StepLocation,
        /// The block.
        block: usize,
    },
    /// A step reads a block that holds no value.
    #[error("{at}: block {block} holds nothing yet")]
    Uninitialised {
        /// The step.
        at: StepLocation,
        /// The block.
        block: usize,
    },
    /// A step reads a slot that holds another block.
    #[error("{at}: reads block {block}, where block {found} lies")]
    WrongBlock {
        /// The step.
        at: StepLocation,
        /// The block that the step names.
        block: usize,
        /// The block in the slot.
        found: usize,
    },
    /// A step reads a range of scratch that differs from the one that was written. The blocks of a
    /// range are packed, so they do not start at slots.
    #[error("{at}: block {block} lies in a range of scratch that was written as another")]
    Packing {
        /// The step.
        at: StepLocation,
        /// The block.
        block: usize,
    },
    /// A send and the receive that matches it name different blocks.
    #[error("{send} matches {recv}")]
    Mismatch {
        /// The send.
        send: Box<StepLocation>,
        /// The receive.
        recv: Box<StepLocation>,
    },
    /// A contribution is in both operands of a combination.
    #[error("{at}: block {block} combines {ours} with {theirs}")]
    CountedTwice {
        /// The step.
        at: StepLocation,
        /// The block.
        block: usize,
        /// The contributors of the rank's value.
        ours: Box<Contributors>,
        /// The contributors of the other operand.
        theirs: Box<Contributors>,
    },
    /// A finished reduction is combined or finished again.
    #[error("{at}: block {block} is finished already")]
    Finished {
        /// The step.
        at: StepLocation,
        /// The block.
        block: usize,
    },
    /// No rank can continue.
    #[error("deadlock: {}", list(.0))]
    Deadlock(Vec<Blocked>),
    /// A rank ends with the wrong contents of its output.
    #[error("rank {rank} ends with block {block} holding {found}, not {required}")]
    Result {
        /// The rank.
        rank: usize,
        /// The block.
        block: usize,
        /// Its contents.
        found: String,
        /// The required contents.
        required: Required,
    },
    /// Two ranks combine the same contributions in different orders, so the bits of their results
    /// may differ.
    #[error("ranks {} and {} combine block {block} in different orders", .ranks.0, .ranks.1)]
    Order {
        /// The two ranks.
        ranks: (usize, usize),
        /// The block.
        block: usize,
    },
    /// A rank combines the right contributions, but not in the required tree.
    #[error("rank {rank} does not combine block {block} in the required tree")]
    Tree {
        /// The rank.
        rank: usize,
        /// The block.
        block: usize,
    },
    /// A rank leaves a barrier without a chain of messages from all others.
    #[error("rank {rank} leaves the barrier with messages only from {seen}")]
    Barrier {
        /// The rank.
        rank: usize,
        /// The ranks from which there was such a chain.
        seen: Contributors,
    },
}

/// A blocked step, in a deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The step.
    pub at: StepLocation,
    /// The reason.
    pub reason: Reason,
}

/// The reason why a step is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The peer has not reached the matching step.
    Peer(usize),
    /// The peer has ended without a matching step.
    Ended(usize),
    /// The step conflicts with an earlier unfinished step of the same rank, given by its position.
    Conflict(usize),
    /// The message of an earlier step of the same rank, given by its position, comes first.
    EarlierMessage(usize),
}

impl std::fmt::Display for StepLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Step { blocks, place, action } = self.step;
        write!(f, "rank {} step {} (", self.rank, self.index)?;
        match action {
            Action::Send { to } => write!(f, "send to {to}: ")?,
            Action::Recv { from } => write!(f, "receive from {from}: ")?,
            Action::RecvReduce { from, with } if with == place => {
                write!(f, "receive and reduce from {from}: ")?
            }
            Action::RecvReduce { from, with } => {
                write!(f, "receive from {from} and reduce with {}: ", name(with))?;
            }
            Action::Reduce { with } => write!(f, "reduce with {}: ", name(with))?,
            Action::Copy { from } => write!(f, "copy from {}: ", name(from))?,
            Action::Finish => f.write_str("finish: ")?,
        }
        write!(f, "{} {})", name(place), range(blocks))
    }
}

impl std::fmt::Display for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.reason {
            Reason::Peer(peer) => write!(f, "{} waits for rank {peer}", self.at),
            Reason::Ended(peer) => write!(f, "{} matches nothing: rank {peer} has ended", self.at),
            Reason::Conflict(step) => {
                write!(f, "{} waits for its own step {step}, with which it conflicts", self.at)
            }
            Reason::EarlierMessage(step) => {
                write!(f, "{} waits for its own step {step}, whose message comes first", self.at)
            }
        }
    }
}

impl std::fmt::Display for Required {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("anything"),
            Self::Of(rank) => write!(f, "the contribution of rank {rank}"),
            Self::Reduced => f.write_str("the finished reduction of all ranks"),
            Self::First(ranks) => write!(f, "the reduction of {ranks} ranks from rank 0 on"),
        }
    }
}

fn name(place: Place) -> String {
    match place {
        Place::Input => "input".into(),
        Place::Output => "output".into(),
        Place::Scratch { slot } => format!("slot {slot}"),
    }
}

fn range(blocks: Blocks) -> String {
    match blocks.count {
        1 => format!("block {}", blocks.first),
        _ => format!("blocks {}..{}", blocks.first, blocks.end()),
    }
}

fn list(blocked: &[Blocked]) -> String {
    let lines: Vec<String> = blocked.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

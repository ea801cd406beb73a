//! The mistakes of a caller.

use crate::{DType, ReduceOp, VariableFault};

/// What the caller did wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A root that is not a member.
    #[error("root {root} in a group of {size}")]
    Root {
        /// The root asked for.
        root: usize,
        /// The size of the group.
        size: usize,
    },
    /// A rank that is not a member, or a group too large.
    #[error("rank {rank} in a group of {size}")]
    Rank {
        /// The rank asked for.
        rank: usize,
        /// The size of the group.
        size: usize,
    },
    /// A list of members that names a rank twice.
    #[error("rank {rank} is named twice among the members of a group")]
    Repeated {
        /// The rank.
        rank: usize,
    },
    /// A list of members without the rank that uses it.
    #[error("rank {rank} is not a member of the group")]
    Absent {
        /// The rank.
        rank: usize,
    },
    /// A Cartesian grid with no places, or with more than there are ranks.
    #[error("a grid of {} places cannot be made of {size} ranks", .axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x "))]
    Grid {
        /// The lengths of its axes.
        axes: Vec<usize>,
        /// The number of ranks.
        size: usize,
    },
    /// An axis that a grid does not have.
    #[error("axis {axis} of a grid with {axes} axes, which count from 0")]
    Axis {
        /// The axis asked for.
        axis: usize,
        /// How many there are.
        axes: usize,
    },
    /// A buffer whose elements do not lie one after the other in memory, in the order of their indices.
    #[error("{what} does not lie in memory in one piece and in order; copy it into an array that does")]
    NotContiguous {
        /// Which buffer.
        what: &'static str,
    },
    /// An operator that is not defined on the element type.
    #[error("{op} is not defined on {dtype}")]
    Op {
        /// The operator.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// An operator that a backend lacks on the element type, although it is defined there.
    #[error("{backend} has no {op} on {dtype}")]
    BackendOp {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The operator.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// An operator that the collective does not have.
    #[error("{collective} has no operator {op}")]
    OpOf {
        /// The operator.
        op: ReduceOp,
        /// The collective.
        collective: &'static str,
    },
    /// A buffer of the wrong length.
    #[error("{what} has {got} elements, {expected} are needed")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// The length it must have, in elements.
        expected: usize,
        /// The length it has.
        got: usize,
    },
    /// A buffer whose length does not divide among the ranks.
    #[error("{what} has {got} elements, which do not divide among {size} ranks")]
    Indivisible {
        /// Which buffer.
        what: &'static str,
        /// The length it has, in elements.
        got: usize,
        /// The size of the group.
        size: usize,
    },
    /// Two ranks on one device, where each needs one of its own.
    #[error("ranks {} and {} are both on device {device}: {advice}", .ranks.0, .ranks.1)]
    SharedDevice {
        /// The ranks.
        ranks: (usize, usize),
        /// The device, by the name that it has everywhere.
        device: String,
        /// What is possible instead.
        advice: String,
    },
    /// Send and receive buffers of different types.
    #[error("the send buffer holds {send}, the receive buffer {recv}")]
    DTypes {
        /// The type of the send buffer.
        send: DType,
        /// The type of the receive buffer.
        recv: DType,
    },
    /// A message that does not fit the buffer of the receive that it matches. It is not lost: the next receive that
    /// matches it gets it.
    #[error(
        "the message from rank {source_rank} with tag {tag} has {len} x {dtype}, the buffer {room} x {wanted}"
    )]
    Message {
        /// Who sent it.
        source_rank: usize,
        /// Its tag.
        tag: u64,
        /// How many elements it has.
        len: usize,
        /// The type of its elements.
        dtype: DType,
        /// How many elements the buffer has room for.
        room: usize,
        /// The type of the buffer's elements.
        wanted: DType,
    },
    /// A message of another length than the caller insists on. It has been received.
    #[error("the message from rank {source_rank} with tag {tag} has {got} elements, {expected} are expected")]
    MessageLength {
        /// Who sent it.
        source_rank: usize,
        /// Its tag.
        tag: u64,
        /// How many elements it must have.
        expected: usize,
        /// How many it has.
        got: usize,
    },
    /// The root of a reduction gave no buffer to receive into.
    #[error("the root must give a buffer to receive into")]
    RootWithoutRecv,
    /// A collective that the backend does not have.
    #[error("{backend} has no {collective}")]
    Unsupported {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The collective, as in "exscan".
        collective: &'static str,
    },
    /// A call on a communicator that was finalized.
    #[error("the communicator was finalized")]
    Finalized,
    /// A call in a process that was forked from the one that made the communicator.
    #[error(
        "the communicator belongs to process {owner}, of which this process {process} is a fork: make one after the \
         fork, or start another program with exec"
    )]
    Forked {
        /// The process that made the communicator.
        owner: u32,
        /// The process that made the call.
        process: u32,
    },
    /// A collective that needs a receive buffer got none.
    #[error("the call needs a buffer to receive into")]
    WithoutRecv,
    /// An algorithm that does not exist or cannot carry out the call.
    #[error("no algorithm {name:?} for {collective}; there are: {known}")]
    Algorithm {
        /// The name asked for.
        name: String,
        /// The collective.
        collective: &'static str,
        /// The names that exist.
        known: String,
    },
    /// A setting, from the environment or a configuration, that cannot be used.
    #[error("{name} = {value:?}: {reason}")]
    Setting {
        /// The name of the setting.
        name: String,
        /// What it was set to; empty if it is missing.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A variable of the environment that is not set, is empty, is not text or is misspelt.
    #[error("{name} {fault}; {advice}")]
    Variable {
        /// The name of the variable.
        name: String,
        /// What is wrong with it.
        fault: VariableFault,
        /// What to do about it.
        advice: String,
    },
}

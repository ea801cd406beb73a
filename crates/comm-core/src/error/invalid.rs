//! Errors in the arguments of a call.

use crate::{DType, ReduceOp, VariableFault};

/// An error in the arguments of a call or in its configuration. Nothing was sent.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The root is not a member of the group.
    #[error("root {root} is out of range for a group of size {size}")]
    Root {
        /// The requested root.
        root: usize,
        /// The size of the group.
        size: usize,
    },
    /// A rank is not a member of the group, or the group is too large.
    #[error("rank {rank} is out of range for a group of size {size}")]
    Rank {
        /// The requested rank.
        rank: usize,
        /// The size of the group.
        size: usize,
    },
    /// A list of members contains a rank twice.
    #[error("rank {rank} is listed twice among the members of a group")]
    Repeated {
        /// The rank.
        rank: usize,
    },
    /// The calling rank is not in the list of members.
    #[error("rank {rank} is not in the list of members of the group")]
    Absent {
        /// The rank.
        rank: usize,
    },
    /// A Cartesian grid has an axis of length 0, or more cells than the group has ranks.
    #[error("a grid of {} does not fit a group of {size} ranks", .axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x "))]
    Grid {
        /// The lengths of its axes.
        axes: Vec<usize>,
        /// The number of ranks.
        size: usize,
    },
    /// A grid does not have this axis.
    #[error("axis {axis} is out of range for a grid with {axes} axes, numbered from 0")]
    Axis {
        /// The requested axis.
        axis: usize,
        /// The number of axes.
        axes: usize,
    },
    /// The elements of a buffer are not contiguous in memory, in the order of their indices.
    #[error("{what} is not contiguous in standard order; copy it into a contiguous array first")]
    NotContiguous {
        /// The buffer.
        what: &'static str,
    },
    /// The operator is not defined on the element type.
    #[error("{op} is not defined on {dtype}")]
    Op {
        /// The operator.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// A backend does not support an operator on an element type on which it is defined.
    #[error("{backend} does not support {op} on {dtype}")]
    BackendOp {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The operator.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// The collective does not support the operator.
    #[error("{collective} does not support the operator {op}")]
    OpOf {
        /// The operator.
        op: ReduceOp,
        /// The collective.
        collective: &'static str,
    },
    /// A buffer has the wrong length.
    #[error("{what} has {got} elements, but {expected} are needed")]
    Length {
        /// The buffer.
        what: &'static str,
        /// The length it must have, in elements.
        expected: usize,
        /// The length it has.
        got: usize,
    },
    /// A buffer has more elements than a backend can count.
    #[error("{what} has {got} elements, but {backend} moves at most {max} in one call; divide it")]
    TooLong {
        /// The backend, as in "mpi".
        backend: &'static str,
        /// The buffer.
        what: &'static str,
        /// The length it has, in elements.
        got: usize,
        /// The largest length.
        max: usize,
    },
    /// The length of a buffer is not a multiple of the number of ranks.
    #[error("{what} has {got} elements, which is not a multiple of the {size} ranks of the group")]
    Indivisible {
        /// The buffer.
        what: &'static str,
        /// The length it has, in elements.
        got: usize,
        /// The size of the group.
        size: usize,
    },
    /// Two ranks use the same device, although each needs its own.
    #[error("ranks {} and {} are both on device {device}: {advice}", .ranks.0, .ranks.1)]
    SharedDevice {
        /// The ranks.
        ranks: (usize, usize),
        /// The UUID of the device.
        device: String,
        /// The remedy.
        advice: String,
    },
    /// A backend cannot register the memory of a buffer.
    #[error("{backend} cannot register the buffer: {reason}")]
    Register {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// The send and receive buffers have different element types.
    #[error(
        "the send buffer holds {send} and the receive buffer {recv}; both must have the same element type"
    )]
    DTypes {
        /// The type of the send buffer.
        send: DType,
        /// The type of the receive buffer.
        recv: DType,
    },
    /// A computation that is defined only on floats of at least 16 bits was requested for another
    /// type.
    #[error("the computation is defined on floats of 16, 32 and 64 bits, not on {dtype}")]
    NotFloat {
        /// The type.
        dtype: DType,
    },
    /// A message does not fit the buffer of the receive that matched it. The message is kept for
    /// the next receive that matches it.
    #[error(
        "the message from rank {source_rank} with tag {tag} has {len} x {dtype}, which does not fit the receive buffer of \
         {capacity} x {wanted}"
    )]
    Message {
        /// The sender.
        source_rank: usize,
        /// Its tag.
        tag: u64,
        /// The number of its elements.
        len: usize,
        /// The type of its elements.
        dtype: DType,
        /// The capacity of the buffer in elements.
        capacity: usize,
        /// The type of the buffer's elements.
        wanted: DType,
    },
    /// A message has another length than the caller requires. It has been received.
    #[error(
        "the message from rank {source_rank} with tag {tag} has {got} elements, but the caller requires {expected}"
    )]
    MessageLength {
        /// The sender.
        source_rank: usize,
        /// Its tag.
        tag: u64,
        /// The number of elements that the caller requires.
        expected: usize,
        /// The number of elements that it has.
        got: usize,
    },
    /// The root of a reduction passed no receive buffer.
    #[error("the root must pass a receive buffer")]
    RootWithoutRecv,
    /// The backend does not support the collective.
    #[error("{backend} does not support {collective}")]
    Unsupported {
        /// The backend, as in "nccl".
        backend: &'static str,
        /// The collective, as in "exscan".
        collective: &'static str,
    },
    /// A call on a communicator that was finalized.
    #[error("the communicator has been finalized")]
    Finalized,
    /// A call in a process that was forked from the one that created the communicator.
    #[error(
        "the communicator belongs to process {owner}, and process {process} was forked from it: create a communicator \
         after the fork, or start another program with exec"
    )]
    Forked {
        /// The process that created the communicator.
        owner: u32,
        /// The process that made the call.
        process: u32,
    },
    /// A collective that needs a receive buffer got none.
    #[error("the call needs a receive buffer")]
    WithoutRecv,
    /// The algorithm does not exist or cannot carry out the call.
    #[error("no algorithm {name:?} for {collective}; available: {known}")]
    Algorithm {
        /// The requested name.
        name: String,
        /// The collective.
        collective: &'static str,
        /// The names that exist.
        known: String,
    },
    /// A setting from the environment or a configuration has an unusable value.
    #[error("{name} = {value:?}: {reason}")]
    Setting {
        /// The name of the setting.
        name: String,
        /// Its value; empty if it is missing.
        value: String,
        /// The reason why the value cannot be used.
        reason: String,
    },
    /// An environment variable is not set, is empty, is not UTF-8 or is misspelled.
    #[error("{name} {fault}; {advice}")]
    Variable {
        /// The name of the variable.
        name: String,
        /// The kind of fault.
        fault: VariableFault,
        /// The remedy.
        advice: String,
    },
}

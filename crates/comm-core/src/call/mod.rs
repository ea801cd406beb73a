//! A collective call as one value.

mod check;
mod counts;
mod operands;
mod signature;

pub use counts::Counts;
pub(crate) use counts::check_len;
pub use operands::{Access, InputCopy, Operands};
pub use signature::Signature;

use crate::{Collective, DType, Host, Memory, ReduceOp, Shape};

/// A collective call as one rank makes it: the collective, its buffers, its operator and its root.
///
/// Lengths are in elements. A backend checks a call with [`Call::check`] and takes its buffers with
/// [`Call::into_operands`], so all backends accept the same calls and touch the same memory.
#[non_exhaustive]
pub enum Call<'a, M: Memory = Host> {
    /// Combines the contributions of all ranks; every rank gets the result. All buffers have the
    /// same length.
    AllReduce {
        /// The contribution and the result.
        buffers: Buffers<'a, M>,
        /// The operator.
        op: ReduceOp,
    },
    /// Combines the contributions of all ranks; `root` gets the result. On other ranks, every
    /// buffer is only read.
    Reduce {
        /// The rank that gets the result.
        root: usize,
        /// The contribution, and on the root the result.
        buffers: Buffers<'a, M>,
        /// The operator.
        op: ReduceOp,
    },
    /// Every rank gets the contents of `root`'s buffer. All buffers have the same length.
    Broadcast {
        /// The rank whose buffer is sent.
        root: usize,
        /// The data on the root, the result elsewhere.
        buffer: M::ViewMut<'a>,
    },
    /// Every rank gets the contributions of all ranks, in rank order. A receive buffer has the
    /// total length of all contributions; in place, a rank's contribution is where its block of the
    /// result will be. Every rank passes the same counts.
    AllGather {
        /// The contribution and the result.
        buffers: Buffers<'a, M>,
        /// The lengths of the contributions.
        counts: Counts<'a>,
    },
    /// Combines the contributions of all ranks; each rank gets the block with its number. A send
    /// buffer has the total length of all results. In place, the result is in this rank's block and
    /// the other blocks are unspecified. Every rank passes the same counts.
    ReduceScatter {
        /// The contribution and the result.
        buffers: Buffers<'a, M>,
        /// The lengths of the results.
        counts: Counts<'a>,
        /// The operator.
        op: ReduceOp,
    },
    /// `root` gets the contributions of all ranks, in rank order. On other ranks, every buffer is
    /// only read. In place, the root's contribution is where its block of the result will be. The
    /// counts of ranks other than the root are ignored.
    Gather {
        /// The rank that gets the result.
        root: usize,
        /// The contribution, and on the root the result.
        buffers: Buffers<'a, M>,
        /// The lengths of the contributions.
        counts: Counts<'a>,
    },
    /// Every rank gets its block of `root`'s data, which has one block per rank. Ranks other than
    /// the root pass a receive buffer; their send buffer is ignored. The root's own block stays
    /// where it is, unless the root passes a separate receive buffer. The counts of ranks other
    /// than the root are ignored.
    Scatter {
        /// The rank whose data is scattered.
        root: usize,
        /// The data on the root, and the result.
        buffers: Buffers<'a, M>,
        /// The lengths of the results.
        counts: Counts<'a>,
    },
    /// Every rank sends block `i` of its send buffer to rank `i`, where it becomes the block with
    /// the sender's number. A rank's `send` count for another rank must equal that rank's `recv`
    /// count for it; no rank knows all counts. In place, the `send` and `recv` counts must be
    /// equal.
    AllToAll {
        /// The blocks to send and the blocks to receive.
        buffers: Buffers<'a, M>,
        /// The number of elements sent to each rank.
        send: Counts<'a>,
        /// The number of elements received from each rank.
        recv: Counts<'a>,
    },
    /// Combines the contributions of ranks 0 to `r`; rank `r` gets the result. `MPI_Scan`.
    ///
    /// The result differs between ranks, and is the same on every repetition with the same
    /// algorithm. [`ReduceOp::Avg`] is rejected, because the divisor would be ambiguous. With
    /// [`ReduceOrder::Deterministic`](crate::ReduceOrder::Deterministic), contributions are
    /// combined one by one in rank order.
    Scan {
        /// The contribution and the result.
        buffers: Buffers<'a, M>,
        /// The operator.
        op: ReduceOp,
    },
    /// Combines the contributions of the ranks below `r`; rank `r` gets the result. Rank 0 gets no
    /// result: its receive buffer, or its buffer in place, is left unchanged. Otherwise like
    /// [`Call::Scan`]. `MPI_Exscan`.
    Exscan {
        /// The contribution and the result.
        buffers: Buffers<'a, M>,
        /// The operator.
        op: ReduceOp,
    },
    /// Returns once every rank has called it.
    Barrier,
    /// A barrier that fails on every rank that arrived, naming exactly the ranks that did not: rank
    /// 0 receives a message from every other rank.
    MonitoredBarrier,
    /// Leaves the group, and returns once every rank has done so. Every later call fails. Backends
    /// that count calls compare the last calls of all ranks here.
    Finalize,
}

/// The buffers of a call: the source of a rank's contribution and the destination of its result.
#[derive(Debug)]
pub enum Buffers<'a, M: Memory = Host> {
    /// One buffer holds the contribution and then the result.
    InPlace(M::ViewMut<'a>),
    /// The contribution is read from one buffer and the result is written to another; they do not
    /// overlap.
    Separate {
        /// The contribution.
        send: M::View<'a>,
        /// The result.
        recv: M::ViewMut<'a>,
    },
    /// The contribution of a rank that gets no result.
    SendOnly(M::View<'a>),
}

/// The collective, without its buffers.
impl<M: Memory> std::fmt::Debug for Call<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.collective()).finish()
    }
}

impl<M: Memory> Buffers<'_, M> {
    /// Returns the type of the contribution's elements.
    #[inline]
    fn dtype(&self) -> DType {
        match self {
            Self::InPlace(buffer) => buffer.dtype(),
            Self::Separate { send, .. } | Self::SendOnly(send) => send.dtype(),
        }
    }

    /// Returns the length of the contribution.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::InPlace(buffer) => buffer.len(),
            Self::Separate { send, .. } | Self::SendOnly(send) => send.len(),
        }
    }
}

impl<'a, M: Memory> Call<'a, M> {
    /// Returns the collective: the one with counts if the call has a list of counts.
    #[must_use]
    #[inline]
    pub const fn collective(&self) -> Collective {
        match self {
            Self::AllReduce { .. } => Collective::AllReduce,
            Self::Reduce { .. } => Collective::Reduce,
            Self::Broadcast { .. } => Collective::Broadcast,
            Self::AllGather { counts: Counts::Equal, .. } => Collective::AllGather,
            Self::AllGather { .. } => Collective::AllGatherV,
            Self::ReduceScatter { counts: Counts::Equal, .. } => Collective::ReduceScatter,
            Self::ReduceScatter { .. } => Collective::ReduceScatterV,
            Self::Gather { counts: Counts::Equal, .. } => Collective::Gather,
            Self::Gather { .. } => Collective::GatherV,
            Self::Scatter { counts: Counts::Equal, .. } => Collective::Scatter,
            Self::Scatter { .. } => Collective::ScatterV,
            Self::AllToAll { send: Counts::Equal, recv: Counts::Equal, .. } => Collective::AllToAll,
            Self::AllToAll { .. } => Collective::AllToAllV,
            Self::Scan { .. } => Collective::Scan,
            Self::Exscan { .. } => Collective::Exscan,
            Self::Barrier | Self::Finalize => Collective::Barrier,
            Self::MonitoredBarrier => Collective::MonitoredBarrier,
        }
    }

    /// Returns the operator, if the call reduces.
    #[must_use]
    #[inline]
    pub const fn op(&self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce { op, .. }
            | Self::Reduce { op, .. }
            | Self::ReduceScatter { op, .. }
            | Self::Scan { op, .. }
            | Self::Exscan { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns the root, if the call has one.
    #[must_use]
    #[inline]
    pub const fn root(&self) -> Option<usize> {
        match self {
            Self::Reduce { root, .. }
            | Self::Broadcast { root, .. }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// Returns the number of elements sent to each rank and received from each rank, as far as this
    /// rank specifies them.
    #[must_use]
    #[inline]
    pub const fn counts(&self) -> (Counts<'a>, Counts<'a>) {
        match self {
            Self::AllGather { counts, .. }
            | Self::ReduceScatter { counts, .. }
            | Self::Gather { counts, .. }
            | Self::Scatter { counts, .. } => (*counts, *counts),
            Self::AllToAll { send, recv, .. } => (*send, *recv),
            _ => (Counts::Equal, Counts::Equal),
        }
    }
}

//! Prefix reductions.

use crate::{CallOptions, Exchange, Host, Memory, ReduceOp, Result};

/// Reductions over the ranks up to each rank, which not every backend has.
///
/// What holds for every call is written at [`Communicator`](crate::Communicator), except that each rank gets another
/// result: it is the same on every repetition with the same algorithm. All buffers have the same length.
/// [`ReduceOp::Avg`] is refused: it is open by how many one would divide. With
/// [`ReduceOrder::Deterministic`](crate::ReduceOrder::Deterministic), contributions are combined one after the other
/// in the order of ranks.
pub trait Scan<M: Memory = Host>: Send + Sync {
    /// Combines the contributions of ranks 0 to `r`; rank `r` gets the result. `MPI_Scan`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn scan(&self, buffers: Exchange<'_, M>, op: ReduceOp, options: &CallOptions) -> Result<()>;

    /// Combines the contributions of the ranks below `r`; rank `r` gets the result. Rank 0 gets none: its receive
    /// buffer, or its buffer in place, is left as it was. `MPI_Exscan`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    fn exscan(&self, buffers: Exchange<'_, M>, op: ReduceOp, options: &CallOptions) -> Result<()>;
}

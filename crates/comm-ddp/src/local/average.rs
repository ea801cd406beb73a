//! The average of outer gradients over all ranks.

use comm_core::{Comm, ReduceOp};

use crate::Scalar;

/// Replaces an outer gradient by the average over all ranks, the same bits on every rank.
pub(super) fn average<T: Scalar>(comm: &Comm, gradient: &mut [T]) -> comm_core::Result<()> {
    comm.all_reduce(gradient, ReduceOp::Avg)
}

/// Returns the bytes that each rank sends to average so many elements of `T`: its part of a
/// reduce-scatter and of an all-gather, which is the least that an all-reduce sends.
pub(super) const fn bytes_sent<T>(len: usize, ranks: usize) -> u64 {
    let block = (len * size_of::<T>()).div_ceil(ranks) as u64;
    2 * block * (ranks as u64 - 1)
}

//! Ranks that make different calls.

use comm_core::{AsViewMut, Buffers, Call, ReduceOp};

use super::outcome::ensure;
use super::{CheckResult, Features, Member};

/// A difference between the calls of rank 0 and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// A different number of elements.
    Length,
    /// A different operator.
    Operator,
    /// A different element type.
    Type,
    /// A different root.
    Root,
    /// A different collective.
    Collective,
}

/// All differences.
pub const MISMATCHES: [Mismatch; 5] =
    [Mismatch::Length, Mismatch::Operator, Mismatch::Type, Mismatch::Root, Mismatch::Collective];

/// Checks that a call of several ranks fails on every rank if rank 0 makes a different one. The
/// communicator is unusable afterwards.
///
/// # Errors
/// [`Failure`](super::Failure).
pub fn mismatch_fails<M: Member>(member: &M, mismatch: Mismatch) -> CheckResult {
    let Features { options, mismatches, .. } = member.features();
    if !mismatches.contains(&mismatch) {
        return Ok(());
    }
    let comm = member.communicator();
    let differs = comm.group().rank() == 0;
    let len = if mismatch == Mismatch::Length && differs { 6 } else { 5 };
    let op = if mismatch == Mismatch::Operator && differs { ReduceOp::Max } else { ReduceOp::Sum };
    let root = usize::from(!differs);
    let (mut floats, mut ints) = (member.buffer(&vec![1.0_f32; len])?, member.buffer(&vec![1_i32; len])?);
    let buffer =
        if mismatch == Mismatch::Type && differs { ints.as_view_mut()? } else { floats.as_view_mut()? };
    let call = match mismatch {
        Mismatch::Root => Call::Broadcast { root, buffer },
        Mismatch::Collective if differs => Call::Broadcast { root, buffer },
        _ => Call::AllReduce { buffers: Buffers::InPlace(buffer), op },
    };
    // A rank that only sends may complete before the others detect the mismatch, and then gets the
    // error in a later call.
    let barriers = || (0..3).try_for_each(|_| comm.run(Call::Barrier, &options));
    let outcome = comm.run(call, &options).and_then(|()| member.synchronize()).and_then(|()| barriers());
    let Err(error) = outcome else {
        return ensure(false, || format!("the ranks' calls differ in {mismatch:?}, but succeed"));
    };
    ensure(error.is_fatal(), || format!("{mismatch:?} is no fatal error: {error}"))?;
    let next = comm.run(Call::Barrier, &options);
    ensure(next.is_err(), || format!("a call succeeds after one that failed: {error}"))
}

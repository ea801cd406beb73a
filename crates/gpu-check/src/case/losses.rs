//! Cases of ranks that make no call, make a different call, or are killed while others wait for
//! them on the device.

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, Error, ReduceOp, Result};
use comm_nccl::{NcclCommunicator, ShrinkMode};
use rustix::process::{Signal, getpid, kill_process};

use crate::context::{RankContext, in_place, within};
use crate::error::{CaseError, Outcome, ensure, equal, refused, same_bits};

/// The timeout of a call that is not expected to complete.
const GIVEN: Duration = Duration::from_secs(4);

fn together(ctx: &RankContext) -> Outcome<NcclCommunicator> {
    let comm = ctx.connect()?;
    let mut buffer = ctx.buffer(&[1_u32])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
    same_bits("the sum before", &buffer.to_vec()?, &[ctx.size as u32])?;
    Ok(comm)
}

fn sum(ctx: &RankContext, comm: &NcclCommunicator) -> Result<()> {
    let mut buffer = ctx.buffer(&[1_u32; 1000])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &within(GIVEN))?;
    buffer.to_vec().map(drop)
}

/// Returns the error of the sum.
fn lost_sum(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome<Error> {
    let error = refused("a sum without one rank", sum(ctx, comm))?;
    Ok(error.root_cause().clone())
}

/// Rank 1 makes no call until all others have timed out.
pub(super) fn absent_rank(ctx: &RankContext) -> Outcome {
    let comm = together(ctx)?;
    if ctx.rank == 1 {
        let mut others = (0..ctx.size).filter(|rank| *rank != 1);
        others.try_for_each(|rank| ctx.wait_for_flag(&format!("rank {rank} gave up")))?;
        // The data that the others sent before their timeout may suffice to complete the sum, but
        // no further call.
        let outcome = sum(ctx, &comm).and_then(|()| comm.run(Call::Barrier, &ctx.options()));
        let error = refused("coming too late", outcome)?;
        let reported = matches!(error.root_cause(), Error::Aborted { .. });
        return ensure(reported, || format!("coming too late: {error}"));
    }
    let error = lost_sum(ctx, &comm)?;
    let named = match &error {
        Error::Timeout { waiting_for, .. } => waiting_for == &[1],
        // Another rank reached its deadline first.
        Error::Aborted { reason, .. } => reason.contains("waiting for rank 1"),
        _ => false,
    };
    ensure(named, || format!("waiting for rank 1: {error}"))?;
    ctx.set_flag(&format!("rank {} gave up", ctx.rank))
}

/// Rank 0 waits for rank 1's broadcast, and all others wait for rank 0's.
pub(super) fn different_calls(ctx: &RankContext) -> Outcome {
    let comm = together(ctx)?;
    let began = Instant::now();
    let mut buffer = ctx.zeros::<u8>(1 << 20)?;
    let root = usize::from(ctx.rank == 0);
    let outcome = comm.run(Call::Broadcast { root, buffer: buffer.view_mut() }, &ctx.options());
    let error = refused("a broadcast with two roots", outcome.and_then(|()| buffer.to_vec().map(drop)))?;
    let error = error.root_cause();
    match error {
        Error::Desync(reported) => {
            let is_named = |call: &Option<comm_core::Signature>| {
                call.as_ref().is_some_and(|call| call.to_string().contains("broadcast"))
            };
            ensure(is_named(&reported.ours) && is_named(&reported.theirs), || {
                format!("the error does not name both calls: {error}")
            })?;
        }
        // With more than two ranks, one may first receive a report that others found the mismatch.
        Error::Aborted { reason, .. } if ctx.size > 2 => {
            ensure(reason.contains("broadcast"), || format!("the error does not name the calls: {error}"))?;
        }
        _ => return Err(CaseError::Wrong(format!("a broadcast with two roots: {error}"))),
    }
    let took = began.elapsed();
    ensure(took < ctx.spec.call_timeout, || format!("the error came only at the deadline, after {took:?}"))
}

/// Rank 1 is killed while the others wait for it on the device.
pub(super) fn killed_rank(ctx: &RankContext) -> Outcome {
    let comm = together(ctx)?;
    comm.run(Call::Barrier, &ctx.options())?;
    if ctx.rank == 1 {
        thread::sleep(Duration::from_millis(500));
        let killed = kill_process(getpid(), Signal::KILL);
        return equal("killing oneself", killed, Ok(()));
    }
    let error = lost_sum(ctx, &comm)?;
    let reported = match &error {
        Error::PeerLost { peer, .. } => *peer == 1,
        Error::Aborted { .. } => ctx.size > 2,
        // NCCL itself may detect that the process is gone.
        Error::Backend { backend, .. } => *backend == "nccl",
        _ => false,
    };
    ensure(reported, || format!("waiting for a rank that was killed: {error}"))?;
    let after = refused("a call on a failed communicator", comm.run(Call::Barrier, &ctx.options()))?;
    ensure(matches!(after, Error::Poisoned(_)), || format!("a call on a failed communicator: {after}"))?;
    let left = comm.shrink(&[1], ShrinkMode::Abort, &ctx.options())?;
    equal("how many are left", left.group().size(), ctx.size - 1)?;
    let mut buffer = ctx.buffer(&[1_i64])?;
    left.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
    equal("the sum over them", buffer.to_vec()?, vec![ctx.size as i64 - 1])
}

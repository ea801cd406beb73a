//! Ranks that do not come, do something else, or are killed while others wait for them on the device.

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, Error, ReduceOp, Result};
use comm_nccl::{NcclCommunicator, ShrinkMode};
use rustix::process::{Signal, getpid, kill_process};

use crate::player::{Player, in_place, within};
use crate::trouble::{Outcome, Trouble, ensure, equal, refused, same_bits};

/// What a call is given that waits for nobody.
const GIVEN: Duration = Duration::from_secs(4);

fn together(player: &Player) -> Outcome<NcclCommunicator> {
    let comm = player.connect()?;
    let mut buffer = player.buffer(&[1_u32])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &player.options())?;
    same_bits("the sum before", &buffer.to_vec()?, &[player.size as u32])?;
    Ok(comm)
}

fn sum(player: &Player, comm: &NcclCommunicator) -> Result<()> {
    let mut buffer = player.buffer(&[1_u32; 1000])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &within(GIVEN))?;
    buffer.to_vec().map(drop)
}

/// Why there is no sum.
fn lost_sum(player: &Player, comm: &NcclCommunicator) -> Outcome<Error> {
    let error = refused("a sum without one rank", sum(player, comm))?;
    Ok(error.root_cause().clone())
}

/// Rank 1 makes no call until all others have given up.
pub(super) fn absent_rank(player: &Player) -> Outcome {
    let comm = together(player)?;
    if player.rank == 1 {
        let mut others = (0..player.size).filter(|rank| *rank != 1);
        others.try_for_each(|rank| player.await_mark(&format!("rank {rank} gave up")))?;
        // What the others had sent before they gave up may be enough for the sum, and for nothing more.
        let outcome = sum(player, &comm).and_then(|()| comm.run(Call::Barrier, &player.options()));
        let error = refused("coming too late", outcome)?;
        let told = matches!(error.root_cause(), Error::Aborted { .. });
        return ensure(told, || format!("coming too late: {error}"));
    }
    let error = lost_sum(player, &comm)?;
    let named = match &error {
        Error::Timeout { waiting_for, .. } => waiting_for == &[1],
        // Another one was first to find out.
        Error::Aborted { reason, .. } => reason.contains("waiting for rank 1"),
        _ => false,
    };
    ensure(named, || format!("waiting for rank 1: {error}"))?;
    player.mark(&format!("rank {} gave up", player.rank))
}

/// Rank 0 waits for a message from rank 1's broadcast, and all others for one from rank 0's.
pub(super) fn different_calls(player: &Player) -> Outcome {
    let comm = together(player)?;
    let began = Instant::now();
    let mut buffer = player.zeros::<u8>(1 << 20)?;
    let root = usize::from(player.rank == 0);
    let outcome = comm.run(Call::Broadcast { root, buffer: buffer.view_mut() }, &player.options());
    let error = refused("a broadcast with two roots", outcome.and_then(|()| buffer.to_vec().map(drop)))?;
    let error = error.root_cause();
    match error {
        Error::Desync(told) => {
            let is_named = |call: &Option<comm_core::Signature>| {
                call.as_ref().is_some_and(|call| call.to_string().contains("broadcast"))
            };
            ensure(is_named(&told.ours) && is_named(&told.theirs), || {
                format!("without both calls: {error}")
            })?;
        }
        // With more than two ranks, one may hear first that others found out.
        Error::Aborted { reason, .. } if player.size > 2 => {
            ensure(reason.contains("broadcast"), || format!("without the calls: {error}"))?;
        }
        _ => return Err(Trouble::Wrong(format!("a broadcast with two roots: {error}"))),
    }
    let took = began.elapsed();
    ensure(took < player.part.patience, || format!("it was told at the deadline only, after {took:?}"))
}

/// Rank 1 is killed while the others wait for it on the device.
pub(super) fn killed_rank(player: &Player) -> Outcome {
    let comm = together(player)?;
    comm.run(Call::Barrier, &player.options())?;
    if player.rank == 1 {
        thread::sleep(Duration::from_millis(500));
        let killed = kill_process(getpid(), Signal::KILL);
        return equal("killing oneself", killed, Ok(()));
    }
    let error = lost_sum(player, &comm)?;
    let told = match &error {
        Error::Timeout { waiting_for, .. } => waiting_for == &[1],
        Error::Aborted { .. } => player.size > 2,
        // NCCL itself may notice that the process is gone.
        Error::Backend { backend, .. } => *backend == "nccl",
        _ => false,
    };
    ensure(told, || format!("waiting for a rank that was killed: {error}"))?;
    let after = refused("a call afterwards", comm.run(Call::Barrier, &player.options()))?;
    ensure(matches!(after, Error::Poisoned(_)), || format!("a call afterwards: {after}"))?;
    let left = comm.shrink(&[1], ShrinkMode::Abort, &player.options())?;
    equal("how many are left", left.group().size(), player.size - 1)?;
    let mut buffer = player.buffer(&[1_i64])?;
    left.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &player.options())?;
    equal("the sum over them", buffer.to_vec()?, vec![player.size as i64 - 1])
}

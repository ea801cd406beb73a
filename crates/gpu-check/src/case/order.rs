//! Cases of the order of work on streams.

use std::sync::mpsc::Sender;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, ReduceOp, Result};
use comm_nccl::{DeviceCommunicator, DeviceWork, NcclCommunicator};

use crate::context::{RankContext, in_place, separate};
use crate::error::{CaseError, During, Outcome, ensure, same_bits};
use crate::gpu::{self, Foreign};

const LEN: usize = 100_000;
const ROUNDS: u8 = 20;
/// A time in which all work that does not wait would complete.
const WHILE: Duration = Duration::from_millis(200);

/// Does everything once while no stream is held, because the first use of a kernel, such as loading
/// it, may wait for all work on the device.
fn warm_up(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    let (mut bytes, mut floats) = (ctx.zeros::<u8>(LEN)?, ctx.zeros::<f32>(1)?);
    comm.run(Call::AllReduce { buffers: in_place(&mut bytes), op: ReduceOp::Sum }, &ctx.options())?;
    comm.run(Call::AllReduce { buffers: in_place(&mut floats), op: ReduceOp::Sum }, &ctx.options())?;
    let mut copied = ctx.zeros::<u8>(LEN)?;
    gpu::fill(&mut bytes, &ctx.stream, 1)?;
    gpu::copy(bytes.as_slice(), copied.as_mut_slice(), &ctx.stream)?;
    drop(gpu::hold(&ctx.stream)?);
    same_bits("a copy", &copied.to_vec()?, &[1; LEN])?;
    comm.run(Call::Barrier, &ctx.options())?;
    Ok(())
}

pub(super) fn streams(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    let (first, second) = (ctx.device.new_stream()?, ctx.device.new_stream()?);
    let mut buffer = ctx.zeros::<u8>(LEN)?;
    for round in 1..=ROUNDS {
        // Everything is enqueued before any of it can start.
        let held = gpu::hold(&first)?;
        gpu::fill(&mut buffer, &first, round)?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
        let mut copied = ctx.zeros::<u8>(LEN)?;
        gpu::copy(buffer.as_slice(), copied.as_mut_slice(), &second)?;
        // This write must not overtake the copy.
        gpu::fill(&mut buffer, &first, 99)?;
        drop(held);
        let sum = round.wrapping_mul(ctx.size as u8);
        same_bits(format!("the sum of round {round}"), &copied.to_vec()?, &[sum; LEN])?;
        same_bits(format!("the write after round {round}"), &buffer.to_vec()?, &[99; LEN])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn foreign_memory(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    let mut memory = Foreign::zeros(&ctx.device, LEN)?;
    for round in 1..=ROUNDS {
        let held = gpu::hold(memory.stream())?;
        memory.fill(round)?;
        let buffers = Buffers::InPlace(memory.view_mut());
        comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &ctx.options())?;
        drop(held);
        let sum = round.wrapping_mul(ctx.size as u8);
        same_bits(format!("round {round}"), &memory.to_vec()?, &[sum; LEN])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Reads untracked memory on a stream that waits only for the calls.
pub(super) fn joined_streams(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    let (mut memory, other) = (Foreign::zeros(&ctx.device, LEN)?, ctx.device.new_stream()?);
    for round in 1..=3 {
        memory.fill(round)?;
        let held = gpu::hold(comm.stream())?;
        comm.run(
            Call::AllReduce { buffers: Buffers::InPlace(memory.view_mut()), op: ReduceOp::Sum },
            &ctx.options(),
        )?;
        let work = comm.work()?;
        work.wait(&other)?;
        let mut copied = ctx.zeros::<u8>(LEN)?;
        memory.copy_to(&mut copied, &other)?;
        let read = DeviceWork::until_now(&other)?;
        thread::sleep(WHILE);
        let is_early = work.is_done()? || read.is_done()?;
        drop(held);
        ensure(!is_early, || format!("round {round} did not wait for the call"))?;
        work.synchronize()?;
        let sum = round.wrapping_mul(ctx.size as u8);
        same_bits(format!("the data read in round {round}"), &copied.to_vec()?, &[sum; LEN])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Checks that memory is not freed too early: it would be reused and overwritten before the call.
pub(super) fn freed_after_use(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    for round in 1..=5 {
        let mut kept = ctx.zeros::<u8>(LEN)?;
        let held = gpu::hold(comm.stream())?;
        let sent = ctx.buffer(&[round; LEN])?;
        comm.run(Call::AllReduce { buffers: separate(&sent, &mut kept), op: ReduceOp::Sum }, &ctx.options())?;
        let next = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                drop(held);
            });
            drop(sent);
            ctx.buffer(&[0xEE_u8; LEN])
        })?;
        let sum = round.wrapping_mul(ctx.size as u8);
        same_bits(format!("round {round}"), &kept.to_vec()?, &[sum; LEN])?;
        same_bits("the buffer allocated afterwards", &next.to_vec()?, &[0xEE; LEN])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Releases a stream after a while, and returns whether the waiter waited for it.
fn has_waited(held: Sender<()>, waiter: ScopedJoinHandle<'_, Result<()>>) -> Outcome<bool> {
    thread::sleep(WHILE);
    let waited = !waiter.is_finished();
    drop(held);
    waiter.join().map_err(|_| CaseError::Wrong("the thread in the barrier panicked".into()))??;
    Ok(waited)
}

pub(super) fn barrier_waits_for_the_device(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    for round in 0..3 {
        let mut buffer = ctx.buffer(&[1.0_f32])?;
        let held = gpu::hold(comm.stream())?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options())?;
        let options = ctx.options();
        let waited =
            thread::scope(|scope| has_waited(held, scope.spawn(|| comm.run(Call::Barrier, &options))))?;
        ensure(waited, || format!("barrier {round} did not wait for the device"))?;
        same_bits("the sum before it", &buffer.to_vec()?, &[ctx.size as f32])?;
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

/// Delays the device of one rank: no other rank may leave the barrier before it.
pub(super) fn barrier_waits_for_all(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    warm_up(ctx, &comm)?;
    for late in 0..ctx.size {
        let mark = format!("rank {late} continues");
        comm.run(Call::Barrier, &ctx.options())?;
        if ctx.rank == late {
            let (held, options) = (gpu::hold(comm.stream())?, ctx.options());
            thread::scope(|scope| {
                let barrier = scope.spawn(|| comm.run(Call::Barrier, &options));
                thread::sleep(WHILE);
                ctx.set_flag(&mark)?;
                has_waited(held, barrier)
            })
            .during("the late rank")?;
        } else {
            comm.run(Call::Barrier, &ctx.options())?;
            ensure(ctx.has_flag(&mark), || format!("a barrier returned before rank {late} entered it"))?;
        }
    }
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

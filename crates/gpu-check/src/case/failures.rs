//! Cases with calls that hang, deadlines and aborts.

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, During as Under, Error, Membership, ReduceOp};
use comm_nccl::{NcclCommunicator, UniqueId};

use crate::context::{RankContext, in_place, within};
use crate::error::{CaseError, During, Outcome, ensure, refused, same_bits};
use crate::gpu;

/// A timeout that is long enough for a small call, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(500);

/// Checks that the communicator is poisoned, and fails immediately.
fn ensure_poisoned(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    let mut buffer = ctx.zeros::<f32>(1)?;
    let call =
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &ctx.options());
    for outcome in [call, comm.run(Call::Barrier, &ctx.options())] {
        let error = refused("a call on an aborted communicator", outcome)?;
        ensure(matches!(error, Error::Poisoned(_)), || {
            format!("a call on an aborted communicator: {error}")
        })?;
    }
    Ok(())
}

/// Makes a successful call, so that the next one does not have to load a kernel.
fn check_calls(ctx: &RankContext, comm: &NcclCommunicator) -> Outcome {
    let mut good = ctx.buffer(&[1.0_f32; 3])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut good), op: ReduceOp::Sum }, &ctx.options())?;
    comm.run(Call::Barrier, &ctx.options())?;
    same_bits("the sum before", &good.to_vec()?, &[ctx.size as f32; 3])
}

pub(super) fn abort(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    check_calls(ctx, &comm)?;
    let mut lost = ctx.buffer(&[1.0_f32; 3])?;
    let held = gpu::hold(comm.stream())?;
    comm.run(Call::AllReduce { buffers: in_place(&mut lost), op: ReduceOp::Sum }, &ctx.options())?;
    let error = thread::scope(|scope| {
        let waiter = scope.spawn(|| comm.synchronize());
        // An abort frees memory, and for that a device may wait for all its streams.
        let aborter = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            comm.abort("enough");
        });
        let waited = waiter.join();
        drop(held);
        let aborted = aborter.join();
        waited.and_then(|outcome| aborted.map(|()| outcome))
    });
    let error = error.map_err(|_| CaseError::Wrong("a thread panicked".into()))?;
    let error = refused("waiting for an aborted call", error)?;
    let ours = matches!(&error, Error::Aborted { reason, .. } if reason.contains("enough"));
    ensure(ours, || format!("waiting for an aborted call: {error}"))?;
    comm.abort("again");
    ensure_poisoned(ctx, &comm)?;
    drop(comm);
    afterwards(ctx, lost)
}

/// Checks the buffer that a lost call should have written: reading it fails, and it can be written
/// again. The device still works.
fn afterwards(ctx: &RankContext, mut lost: comm_nccl::DeviceBuffer<f32>) -> Outcome {
    let error = refused("reading the buffer of an aborted call", lost.to_vec())?;
    ensure(matches!(error, Error::Poisoned(_)), || {
        format!("reading the buffer of an aborted call: {error}")
    })?;
    lost.copy_from_host(&[4.0; 3])?;
    same_bits("the elements written afterwards", &lost.to_vec()?, &[4.0; 3])?;
    let comm = ctx.connect().during("another communicator")?;
    check_calls(ctx, &comm).during("another communicator")?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

pub(super) fn deadline(ctx: &RankContext) -> Outcome {
    let comm = ctx.connect()?;
    check_calls(ctx, &comm)?;
    let mut lost = ctx.buffer(&[1.0_f32; 3])?;
    let held = gpu::hold(comm.stream())?;
    let began = Instant::now();
    comm.run(Call::AllReduce { buffers: in_place(&mut lost), op: ReduceOp::Sum }, &within(SHORT))?;
    let waited = comm.synchronize();
    let took = began.elapsed();
    drop(held);
    let error = refused("a call that cannot begin", waited)?;
    // The first rank that fails aborts the others, whose calls may have started later.
    let reported = match &error {
        Error::Timeout { after, during: Under::Call { call, .. }, .. } => {
            *after == SHORT && took >= SHORT && call.to_string().contains("all_reduce(sum, 3 x f32")
        }
        Error::Aborted { .. } => ctx.size > 1,
        _ => false,
    };
    ensure(reported, || format!("a call that cannot begin: {error}"))?;
    ensure(took < ctx.spec.call_timeout, || format!("{SHORT:?} took {took:?}"))?;
    ensure_poisoned(ctx, &comm)?;
    drop(comm);
    afterwards(ctx, lost)
}

pub(super) fn no_peer(ctx: &RankContext) -> Outcome {
    let mut config = comm_nccl::NcclConfig::new(Membership { rank: 0, size: 3 })?;
    config.timeout = SHORT;
    let id = UniqueId::generate(&ctx.library)?;
    let began = Instant::now();
    let made = NcclCommunicator::with_id(&ctx.library, &ctx.device, &id, config);
    let took = began.elapsed();
    let error = refused("a group whose other members never join", made)?;
    let named = matches!(&error, Error::Timeout { waiting_for, during: Under::Rendezvous, .. } if waiting_for == &[1, 2]);
    ensure(named, || format!("a group whose other members never join: {error}"))?;
    ensure(took >= SHORT && took < ctx.spec.call_timeout, || format!("{SHORT:?} took {took:?}"))?;
    let comm = ctx.connect().during("another communicator")?;
    check_calls(ctx, &comm).during("another communicator")?;
    Ok(comm.finalize(ctx.spec.call_timeout)?)
}

//! What does not end by itself, and how it is ended.

use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Call, Communicator, During as Under, Error, Membership, ReduceOp};
use comm_nccl::{NcclCommunicator, UniqueId};

use crate::gpu;
use crate::player::{Player, in_place, within};
use crate::trouble::{During, Outcome, Trouble, ensure, refused, same_bits};

/// Long enough for a device to do something, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(500);

/// The communicator is of no use any more, and says so at once.
fn ensure_poisoned(player: &Player, comm: &NcclCommunicator) -> Outcome {
    let mut buffer = player.zeros::<f32>(1)?;
    let call =
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &player.options());
    for outcome in [call, comm.run(Call::Barrier, &player.options())] {
        let error = refused("a call after the end", outcome)?;
        ensure(matches!(error, Error::Poisoned(_)), || format!("a call after the end: {error}"))?;
    }
    Ok(())
}

/// A call made once in peace, so that the next one has nothing to load on the device.
fn in_peace(player: &Player, comm: &NcclCommunicator) -> Outcome {
    let mut good = player.buffer(&[1.0_f32; 3])?;
    comm.run(Call::AllReduce { buffers: in_place(&mut good), op: ReduceOp::Sum }, &player.options())?;
    comm.run(Call::Barrier, &player.options())?;
    same_bits("the sum before", &good.to_vec()?, &[player.size as f32; 3])
}

pub(super) fn abort(player: &Player) -> Outcome {
    let comm = player.connect()?;
    in_peace(player, &comm)?;
    let mut lost = player.buffer(&[1.0_f32; 3])?;
    let held = gpu::hold(comm.stream())?;
    comm.run(Call::AllReduce { buffers: in_place(&mut lost), op: ReduceOp::Sum }, &player.options())?;
    let error = thread::scope(|scope| {
        let waiter = scope.spawn(|| comm.synchronize());
        // An abort frees memory, for which a device may wait for all its streams.
        let aborter = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            comm.abort("enough");
        });
        let waited = waiter.join();
        drop(held);
        let aborted = aborter.join();
        waited.and_then(|outcome| aborted.map(|()| outcome))
    });
    let error = error.map_err(|_| Trouble::Wrong("a thread panicked".into()))?;
    let error = refused("waiting for what was aborted", error)?;
    let ours = matches!(&error, Error::Aborted { reason, .. } if reason.contains("enough"));
    ensure(ours, || format!("waiting for what was aborted: {error}"))?;
    comm.abort("again");
    ensure_poisoned(player, &comm)?;
    drop(comm);
    afterwards(player, lost)
}

/// What the lost call was to write has no contents, can be written again, and the device goes on.
fn afterwards(player: &Player, mut lost: comm_nccl::DeviceBuffer<f32>) -> Outcome {
    let error = refused("reading what was lost", lost.to_vec())?;
    ensure(matches!(error, Error::Poisoned(_)), || format!("reading what was lost: {error}"))?;
    lost.copy_from_host(&[4.0; 3])?;
    same_bits("what was written afterwards", &lost.to_vec()?, &[4.0; 3])?;
    let comm = player.connect().during("another communicator")?;
    in_peace(player, &comm).during("another communicator")?;
    Ok(comm.finalize(player.part.patience)?)
}

pub(super) fn deadline(player: &Player) -> Outcome {
    let comm = player.connect()?;
    in_peace(player, &comm)?;
    let mut lost = player.buffer(&[1.0_f32; 3])?;
    let held = gpu::hold(comm.stream())?;
    let began = Instant::now();
    comm.run(Call::AllReduce { buffers: in_place(&mut lost), op: ReduceOp::Sum }, &within(SHORT))?;
    let waited = comm.synchronize();
    let took = began.elapsed();
    drop(held);
    let error = refused("a call that cannot begin", waited)?;
    // Who was first tells the others, where there are some, whose calls may have begun later.
    let told = match &error {
        Error::Timeout { after, during: Under::Call { call, .. }, .. } => {
            *after == SHORT && took >= SHORT && call.to_string().contains("all_reduce(sum, 3 x f32")
        }
        Error::Aborted { .. } => player.size > 1,
        _ => false,
    };
    ensure(told, || format!("a call that cannot begin: {error}"))?;
    ensure(took < player.part.patience, || format!("{SHORT:?} took {took:?}"))?;
    ensure_poisoned(player, &comm)?;
    drop(comm);
    afterwards(player, lost)
}

pub(super) fn no_peer(player: &Player) -> Outcome {
    let mut config = comm_nccl::NcclConfig::new(Membership { rank: 0, size: 3 })?;
    config.timeout = SHORT;
    let id = UniqueId::generate(&player.library)?;
    let began = Instant::now();
    let made = NcclCommunicator::with_id(&player.library, &player.device, &id, config);
    let took = began.elapsed();
    let error = refused("a group whose peers never come", made)?;
    let named = matches!(&error, Error::Timeout { waiting_for, during: Under::Rendezvous, .. } if waiting_for == &[1, 2]);
    ensure(named, || format!("a group whose peers never come: {error}"))?;
    ensure(took >= SHORT && took < player.part.patience, || format!("{SHORT:?} took {took:?}"))?;
    let comm = player.connect().during("another communicator")?;
    in_peace(player, &comm).during("another communicator")?;
    Ok(comm.finalize(player.part.patience)?)
}

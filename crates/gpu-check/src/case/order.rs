//! Who waits for whom on a device.

use std::sync::mpsc::Sender;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, ReduceOp, Result};
use comm_nccl::{DeviceCommunicator, DeviceWork, NcclCommunicator};

use crate::gpu::{self, Foreign};
use crate::player::{Player, in_place, separate};
use crate::trouble::{During, Outcome, Trouble, ensure, same_bits};

const LEN: usize = 100_000;
const ROUNDS: u8 = 20;
/// Long enough for whatever does not wait to be through.
const WHILE: Duration = Duration::from_millis(200);

/// Does once what follows, while no stream is held up: what a device does when it first sees a kernel, such as loading it, may
/// wait for all that is under way.
fn warm_up(player: &Player, comm: &NcclCommunicator) -> Outcome {
    let (mut bytes, mut floats) = (player.zeros::<u8>(LEN)?, player.zeros::<f32>(1)?);
    comm.run(Call::AllReduce { buffers: in_place(&mut bytes), op: ReduceOp::Sum }, &player.options())?;
    comm.run(Call::AllReduce { buffers: in_place(&mut floats), op: ReduceOp::Sum }, &player.options())?;
    let mut copied = player.zeros::<u8>(LEN)?;
    gpu::fill(&mut bytes, &player.stream, 1)?;
    gpu::copy(bytes.as_slice(), copied.as_mut_slice(), &player.stream)?;
    drop(gpu::hold(&player.stream)?);
    same_bits("a copy", &copied.to_vec()?, &[1; LEN])?;
    comm.run(Call::Barrier, &player.options())?;
    Ok(())
}

pub(super) fn streams(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    let (first, second) = (player.device.new_stream()?, player.device.new_stream()?);
    let mut buffer = player.zeros::<u8>(LEN)?;
    for round in 1..=ROUNDS {
        // All is enqueued before any of it may begin.
        let held = gpu::hold(&first)?;
        gpu::fill(&mut buffer, &first, round)?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &player.options())?;
        let mut copied = player.zeros::<u8>(LEN)?;
        gpu::copy(buffer.as_slice(), copied.as_mut_slice(), &second)?;
        // This write must not overtake the copy.
        gpu::fill(&mut buffer, &first, 99)?;
        drop(held);
        let sum = round.wrapping_mul(player.size as u8);
        same_bits(format!("the sum of round {round}"), &copied.to_vec()?, &[sum; LEN])?;
        same_bits(format!("the write after round {round}"), &buffer.to_vec()?, &[99; LEN])?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

pub(super) fn foreign_memory(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    let mut memory = Foreign::zeros(&player.device, LEN)?;
    for round in 1..=ROUNDS {
        let held = gpu::hold(memory.stream())?;
        memory.fill(round)?;
        let buffers = Buffers::InPlace(memory.view_mut());
        comm.run(Call::AllReduce { buffers, op: ReduceOp::Sum }, &player.options())?;
        drop(held);
        let sum = round.wrapping_mul(player.size as u8);
        same_bits(format!("round {round}"), &memory.to_vec()?, &[sum; LEN])?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

/// Memory whose uses nobody tracks is read on a stream that is told to wait for the calls, and by nothing else.
pub(super) fn joined_streams(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    let (mut memory, other) = (Foreign::zeros(&player.device, LEN)?, player.device.new_stream()?);
    for round in 1..=3 {
        memory.fill(round)?;
        let held = gpu::hold(comm.stream())?;
        comm.run(
            Call::AllReduce { buffers: Buffers::InPlace(memory.view_mut()), op: ReduceOp::Sum },
            &player.options(),
        )?;
        let work = comm.work()?;
        work.wait(&other)?;
        let mut copied = player.zeros::<u8>(LEN)?;
        memory.copy_to(&mut copied, &other)?;
        let read = DeviceWork::until_now(&other)?;
        thread::sleep(WHILE);
        let is_early = work.is_done()? || read.is_done()?;
        drop(held);
        ensure(!is_early, || format!("round {round} did not wait for the call"))?;
        work.synchronize()?;
        let sum = round.wrapping_mul(player.size as u8);
        same_bits(format!("what was read in round {round}"), &copied.to_vec()?, &[sum; LEN])?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

/// What is freed too early is given away again, and written, while the call is still to come.
pub(super) fn freed_behind(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    for round in 1..=5 {
        let mut kept = player.zeros::<u8>(LEN)?;
        let held = gpu::hold(comm.stream())?;
        let sent = player.buffer(&[round; LEN])?;
        comm.run(
            Call::AllReduce { buffers: separate(&sent, &mut kept), op: ReduceOp::Sum },
            &player.options(),
        )?;
        let next = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                drop(held);
            });
            drop(sent);
            player.buffer(&[0xEE_u8; LEN])
        })?;
        let sum = round.wrapping_mul(player.size as u8);
        same_bits(format!("round {round}"), &kept.to_vec()?, &[sum; LEN])?;
        same_bits("what came to lie there", &next.to_vec()?, &[0xEE; LEN])?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

/// Lets a stream go on after a while, and tells whether something had waited for it.
fn waited(held: Sender<()>, waiter: ScopedJoinHandle<'_, Result<()>>) -> Outcome<bool> {
    thread::sleep(WHILE);
    let waited = !waiter.is_finished();
    drop(held);
    waiter.join().map_err(|_| Trouble::Wrong("the thread in the barrier panicked".into()))??;
    Ok(waited)
}

pub(super) fn barrier_waits_for_the_device(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    for round in 0..3 {
        let mut buffer = player.buffer(&[1.0_f32])?;
        let held = gpu::hold(comm.stream())?;
        comm.run(Call::AllReduce { buffers: in_place(&mut buffer), op: ReduceOp::Sum }, &player.options())?;
        let options = player.options();
        let waited = thread::scope(|scope| waited(held, scope.spawn(|| comm.run(Call::Barrier, &options))))?;
        ensure(waited, || format!("barrier {round} did not wait for the device"))?;
        same_bits("the sum before it", &buffer.to_vec()?, &[player.size as f32])?;
    }
    Ok(comm.finalize(player.part.patience)?)
}

/// One rank's device is late: no other rank leaves the barrier before it.
pub(super) fn barrier_waits_for_all(player: &Player) -> Outcome {
    let comm = player.connect()?;
    warm_up(player, &comm)?;
    for late in 0..player.size {
        let mark = format!("rank {late} goes on");
        comm.run(Call::Barrier, &player.options())?;
        if player.rank == late {
            let (held, options) = (gpu::hold(comm.stream())?, player.options());
            thread::scope(|scope| {
                let barrier = scope.spawn(|| comm.run(Call::Barrier, &options));
                thread::sleep(WHILE);
                player.mark(&mark)?;
                waited(held, barrier)
            })
            .during("the late rank")?;
        } else {
            comm.run(Call::Barrier, &player.options())?;
            ensure(player.is_marked(&mark), || format!("a barrier was over before rank {late} came"))?;
        }
    }
    Ok(comm.finalize(player.part.patience)?)
}

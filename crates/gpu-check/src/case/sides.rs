//! Groups with a side for the host and one for devices, by NCCL and through the host.

use std::sync::Arc;

use comm_core::{Comm, HostCommunicator, Membership, ReduceOp};
use comm_hybrid::{
    DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator, HybridFabric, RendezvousConfig,
};
use comm_nccl::{Cuda, Search};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::exact::{Small, block, contribution, elements, joined, of_rank, reduced};
use comm_tcp::FileStore;

use crate::player::Player;
use crate::trouble::{During, Outcome, ensure, equal, refused, same_bits};

/// Bytes that go through the host at a time.
const PIECE: usize = 64 << 10;
/// Nothing, less than a piece, and several pieces that do not come out even.
const COUNTS: [usize; 4] = [0, 1, 1025, 200_003];

/// All ranks of the case, on both sides.
fn connect(player: &Player, path: DevicePath) -> Outcome<HybridCommunicator> {
    let store = Arc::new(FileStore::open(player.part.folder.join("store"))?);
    let mut meeting = RendezvousConfig::new(Membership { rank: player.rank, size: player.size });
    meeting.tcp.member.timeout = player.part.patience;
    let fabric = HybridFabric::rendezvous(&*store, &meeting).during("meeting as processes")?;
    let host: Arc<dyn HostCommunicator> =
        Arc::new(RingCommunicator::new(fabric, RingConfig::default(), player.part.patience)?);
    let mut config = DeviceConfig::with_path(path);
    config.device = DeviceChoice::Opened(player.device.clone());
    config.library = Some(Search::new().at(player.library.path()));
    config.nccl = Some(player.config()?);
    config.piece_bytes = PIECE;
    config.timeout = player.part.patience;
    let group = HybridCommunicator::connect(host, Some(store), &config)?;
    equal("the way of device buffers", group.path(), path)?;
    Ok(group.with_timeout(player.part.patience))
}

pub(super) fn staged(player: &Player) -> Outcome {
    let group = connect(player, DevicePath::Staged)?;
    let comm = group.cuda();
    for count in COUNTS {
        let of = |what: &str| format!("{what} of {count}");
        sum::<f32>(player, comm, ReduceOp::Sum, count).during(of("a sum"))?;
        sum::<half::bf16>(player, comm, ReduceOp::Avg, count).during(of("an average"))?;
        sum::<i16>(player, comm, ReduceOp::Max, count).during(of("a maximum that NCCL lacks"))?;
        gather::<u8>(player, comm, count).during(of("a gather"))?;
        for root in 0..player.size {
            broadcast::<f64>(player, comm, root, count).during(of("a broadcast"))?;
        }
    }
    Ok(group.device_barrier()?)
}

fn sum<T: Small>(player: &Player, comm: &Comm<Cuda>, op: ReduceOp, count: usize) -> Outcome {
    let ours: Vec<T> = elements(0..count, |index| contribution(op, player.size, player.rank, index));
    let wanted: Vec<T> = elements(0..count, |index| reduced(op, player.size, index));
    let (mut buffer, mut recv) = (player.buffer(&ours)?, player.zeros(count)?);
    let op = of_rank(op, player.rank);
    comm.all_reduce_into(&buffer, &mut recv, op)?;
    same_bits("what was received", &recv.to_vec()?, &wanted)?;
    same_bits("what was sent", &buffer.to_vec()?, &ours)?;
    comm.all_reduce(&mut buffer, op)?;
    same_bits("in place", &buffer.to_vec()?, &wanted)
}

fn gather<T: Small>(player: &Player, comm: &Comm<Cuda>, count: usize) -> Outcome {
    let of = |rank, count| block::<T>(rank, 0, count);
    let send = player.buffer(&of(player.rank, count))?;
    let mut recv = player.zeros(count * player.size)?;
    comm.all_gather(&send, &mut recv)?;
    same_bits("what was received", &recv.to_vec()?, &joined(&vec![count; player.size], of))
}

fn broadcast<T: Small>(player: &Player, comm: &Comm<Cuda>, root: usize, count: usize) -> Outcome {
    let mut buffer = player.buffer(&block::<T>(player.rank, 1, count))?;
    comm.broadcast(root, &mut buffer)?;
    same_bits(format!("from {root}"), &buffer.to_vec()?, &block::<T>(root, 1, count))
}

pub(super) fn together(player: &Player) -> Outcome {
    let group = connect(player, DevicePath::Nccl)?;
    let ranks = player.size as f32;
    let mut on_device = player.buffer(&[1.0_f32; 1000])?;
    group.cuda().all_reduce(&mut on_device, ReduceOp::Sum)?;
    same_bits("the sum on devices", &on_device.to_vec()?, &[ranks; 1000])?;
    let mut on_host = [1.0_f32; 1000];
    group.host().all_reduce(&mut on_host, ReduceOp::Sum)?;
    same_bits("the sum on hosts", &on_host, &[ranks; 1000])?;
    group.cuda().all_reduce(&mut on_device, ReduceOp::Max)?;
    group.device_barrier()?;
    same_bits("the maximum before the barrier", &on_device.to_vec()?, &[ranks; 1000])?;
    // Nobody is within a call when one side ends.
    player.meet("all is done")?;
    if player.rank == 0 {
        group.abort("all is done");
    }
    both_end(player, &group)
}

/// After an abort on one rank, neither side of any rank does anything more.
fn both_end(player: &Player, group: &HybridCommunicator) -> Outcome {
    let after = |what: &str, outcome| {
        let error = refused(what, outcome)?;
        let words = error.to_string();
        ensure(words.contains("all is done"), || format!("{what}: {words}"))
    };
    after("a sum on hosts after the abort", group.host().all_reduce(&mut [1_u8], ReduceOp::Sum))?;
    let mut buffer = player.buffer(&[1_u8])?;
    after(
        "a sum on devices after the abort",
        group.cuda().all_reduce(&mut buffer, ReduceOp::Sum).and_then(|()| group.synchronize()),
    )
}

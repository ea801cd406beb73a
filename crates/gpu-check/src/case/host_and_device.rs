//! Cases of hybrid communicators, with NCCL and staged through the host, in groups that shrink and
//! grow.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use comm::{Config, ElasticGroup, GrowOptions, StoreHost};
use comm_core::{Collective, Error, HostCommunicator, Membership, ReduceOp, ShrinkOptions};
use comm_hybrid::{
    DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator, HybridFabric, RendezvousConfig,
};
use comm_nccl::Search;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::communicator_conformance::{Features, check};
use comm_tcp::FileStore;
use rustix::process::{Signal, getpid, kill_process};

use super::conformance::DeviceMember;
use crate::context::RankContext;
use crate::error::{During, Outcome, ensure, equal, refused, same_bits};

/// The size of staging pieces in bytes.
const PIECE: usize = 64 << 10;

/// Connects a hybrid communicator of all ranks.
fn connect(ctx: &RankContext, path: DevicePath) -> Outcome<HybridCommunicator> {
    let store = FileStore::open(ctx.spec.folder.join("store"))?;
    let mut config = RendezvousConfig::new(Membership { rank: ctx.rank, size: ctx.size });
    config.tcp.member.timeout = ctx.spec.call_timeout;
    let fabric = HybridFabric::rendezvous(&store, &config).during("rendezvous")?;
    let host: Arc<dyn HostCommunicator> =
        Arc::new(RingCommunicator::new(fabric, RingConfig::default(), ctx.spec.call_timeout)?);
    let group = HybridCommunicator::connect(host, &devices(ctx, path)?)?;
    equal("the path of device buffers", group.path(), path)?;
    Ok(group.with_timeout(ctx.spec.call_timeout))
}

fn devices(ctx: &RankContext, path: DevicePath) -> Outcome<DeviceConfig> {
    let mut config = DeviceConfig::with_path(path);
    config.device = DeviceChoice::Opened(ctx.device.clone());
    config.library = Some(Search::new().at(ctx.library.path()));
    config.nccl = Some(ctx.config()?);
    config.piece_bytes = PIECE;
    config.timeout = ctx.spec.call_timeout;
    Ok(config)
}

pub(super) fn staged(ctx: &RankContext) -> Outcome {
    let group = connect(ctx, DevicePath::Staged)?;
    let mut member = DeviceMember::new(ctx, group.cuda().communicator());
    member.features.reduces = Features::default().reduces;
    // No elements, less than a piece, and several pieces with a remainder.
    (member.features.lengths, member.features.step) = (|_| vec![0, 1, 1025, 200_003], 53);
    for collective in Collective::ALL {
        check(&member, collective)?;
    }
    Ok(group.device_barrier()?)
}

pub(super) fn together(ctx: &RankContext) -> Outcome {
    let group = connect(ctx, DevicePath::Nccl)?;
    let ranks = ctx.size as f32;
    let mut on_device = ctx.buffer(&[1.0_f32; 1000])?;
    group.cuda().all_reduce(&mut on_device, ReduceOp::Sum)?;
    same_bits("the sum on devices", &on_device.to_vec()?, &[ranks; 1000])?;
    let mut on_host = [1.0_f32; 1000];
    group.host().all_reduce(&mut on_host, ReduceOp::Sum)?;
    same_bits("the sum on hosts", &on_host, &[ranks; 1000])?;
    group.cuda().all_reduce(&mut on_device, ReduceOp::Max)?;
    group.device_barrier()?;
    same_bits("the maximum before the barrier", &on_device.to_vec()?, &[ranks; 1000])?;
    // No rank is in a call when one communicator fails.
    ctx.sync_ranks("all is done")?;
    if ctx.rank == 0 {
        group.abort("all is done");
    }
    both_end(ctx, &group)
}

/// Checks that after an abort on one rank, both communicators return errors on every rank.
fn both_end(ctx: &RankContext, group: &HybridCommunicator) -> Outcome {
    let after = |what: &str, outcome| {
        let error = refused(what, outcome)?;
        let words = error.to_string();
        ensure(words.contains("all is done"), || format!("{what}: {words}"))
    };
    after("a sum on hosts after the abort", group.host().all_reduce(&mut [1_u8], ReduceOp::Sum))?;
    let mut buffer = ctx.buffer(&[1_u8])?;
    after(
        "a sum on devices after the abort",
        group.cuda().all_reduce(&mut buffer, ReduceOp::Sum).and_then(|()| group.synchronize()),
    )
}

/// Checks the size and the path of a group, and a sum of ones on hosts and on devices.
fn sums(ctx: &RankContext, group: &HybridCommunicator, size: usize, when: &str) -> Outcome {
    equal(format!("the number of ranks {when}"), group.group().size(), size)?;
    equal(format!("the path of device buffers {when}"), group.path(), DevicePath::Nccl)?;
    let mut on_device = ctx.buffer(&[1.0_f32; 1000])?;
    group.cuda().all_reduce(&mut on_device, ReduceOp::Sum)?;
    let mut on_host = [1.0_f32; 1000];
    group.host().all_reduce(&mut on_host, ReduceOp::Sum)?;
    group.device_barrier()?;
    same_bits(format!("the sum on devices {when}"), &on_device.to_vec()?, &[size as f32; 1000])?;
    same_bits(format!("the sum on hosts {when}"), &on_host, &[size as f32; 1000])
}

/// Rank 1 is killed while the others wait for it on the device; they go on without it.
pub(super) fn shrink(ctx: &RankContext) -> Outcome {
    let group = connect(ctx, DevicePath::Nccl)?;
    sums(ctx, &group, ctx.size, "before")?;
    if ctx.rank == 1 {
        thread::sleep(Duration::from_millis(500));
        return equal("killing oneself", kill_process(getpid(), Signal::KILL), Ok(()));
    }
    let mut buffer = ctx.buffer(&[1_u32; 1000])?;
    let outcome = group.cuda().all_reduce(&mut buffer, ReduceOp::Sum).and_then(|()| group.synchronize());
    let error = refused("a sum without one rank", outcome)?;
    let is_reported = match error.root_cause() {
        Error::PeerLost { peer, .. } => *peer == 1,
        Error::Aborted { .. } => ctx.size > 2,
        // NCCL itself may detect that the process is gone.
        Error::Backend { backend, .. } => *backend == "nccl",
        _ => false,
    };
    ensure(is_reported, || format!("waiting for a rank that was killed: {error}"))?;
    let shrunk = group.shrink(&ShrinkOptions::default().timeout(ctx.spec.call_timeout))?;
    let left: Vec<usize> = (0..ctx.size).filter(|rank| *rank != 1).collect();
    equal("the remaining ranks", &shrunk.ranks, &left)?;
    sums(ctx, &shrunk.comm, left.len(), "after")?;
    refused("a sum on hosts in the group that failed", group.host().all_reduce(&mut [1_u8], ReduceOp::Sum))?;
    Ok(())
}

/// The last rank joins the group of the others, which connect their devices before and after.
pub(super) fn grow(ctx: &RankContext) -> Outcome {
    let joins = ctx.rank + 1 == ctx.size;
    let first = if joins {
        Membership { rank: 0, size: 1 }
    } else {
        Membership { rank: ctx.rank, size: ctx.size - 1 }
    };
    let mut config = Config::new(first, "localhost", 0)?;
    config.store = StoreHost::Folder(ctx.spec.folder.join("store"));
    config.join = joins;
    (config.timeout, config.rendezvous_timeout) = (ctx.spec.call_timeout, ctx.spec.call_timeout);
    config.devices = devices(ctx, DevicePath::Nccl)?;
    let mut group = ElasticGroup::join(&config).during("join")?;
    if !joins {
        sums(ctx, &group.connect_devices()?, first.size, "before")?;
        let began = Instant::now();
        while group.grow(&GrowOptions::default())? == 0 {
            ensure(began.elapsed() < ctx.spec.call_timeout, || "no rank has joined".into())?;
            thread::sleep(Duration::from_millis(20));
        }
    }
    sums(ctx, &group.connect_devices()?, ctx.size, "after")
}

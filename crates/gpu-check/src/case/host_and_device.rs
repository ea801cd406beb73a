//! Cases of hybrid communicators, with NCCL and staged through the host.

use std::sync::Arc;

use comm_core::{Collective, HostCommunicator, Membership, ReduceOp};
use comm_hybrid::{
    DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator, HybridFabric, RendezvousConfig,
};
use comm_nccl::Search;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::communicator_conformance::{Features, check};
use comm_tcp::FileStore;

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
    let mut config = DeviceConfig::with_path(path);
    config.device = DeviceChoice::Opened(ctx.device.clone());
    config.library = Some(Search::new().at(ctx.library.path()));
    config.nccl = Some(ctx.config()?);
    config.piece_bytes = PIECE;
    config.timeout = ctx.spec.call_timeout;
    let group = HybridCommunicator::connect(host, &config)?;
    equal("the path of device buffers", group.path(), path)?;
    Ok(group.with_timeout(ctx.spec.call_timeout))
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

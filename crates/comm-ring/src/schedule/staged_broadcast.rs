//! Staged broadcast: the root copies the data to a buffer that the other ranks of its host read in
//! place.
//!
//! The root copies each segment to scratch and sends it to every rank. If the ranks of a host read
//! that buffer in place, all do so at once, and no rank forwards the data; see the staged
//! all-gather. Otherwise the root sends n-1 times the data.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps, staged_all_gather};

/// The additional cost, in latencies, because the root's call ends only when all ranks have read
/// the data, whereas calls of other algorithms overlap with the next ones.
const SETTLING: f64 = 4.0;

pub(super) fn slots(p: &Params) -> usize {
    if p.rank == p.root { staged_all_gather::slots(p) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    staged_all_gather::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, peers) = (pacing.slowest(p), p.ranks - 1);
    // Data for only one other rank goes through a channel with the same two copies.
    let Some(read) = pace.staged.filter(|_| peers > 1) else {
        return pace.fan(peers * p.segments, false);
    };
    // The first segment is staged and then read, which takes as long as a transfer through a
    // channel. Each later segment is staged while the one before is read.
    let notify = peers as f64 * pace.overhead;
    pace.hop(1) + SETTLING * pace.latency + notify + (p.segments - 1) as f64 * read.max(notify)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.rank != p.root {
        let receive = move |segment| Step::recv(p.root, Place::Output, p.block(0, segment));
        return Box::new((0..p.segments).map(receive));
    }
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let (staged, stage) = p.stage(p.slot(0, segment), Place::Output, block);
        let sends = (1..p.ranks).map(move |distance| Step::send(p.ahead(distance), staged, block));
        stage.into_iter().chain(sends)
    }))
}

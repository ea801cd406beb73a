//! Chain broadcast: each rank forwards the data to the next, segment by segment.
//!
//! n-1 rounds for one segment; every rank receives each segment once and sends it at most once,
//! which is the minimum. If there are many more segments than ranks, the time for large data is
//! little more than that of one transfer.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = if p.ranks > 1 { p.segments } else { 0 };
    Cost { rounds: p.ranks - 1, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    // A rank within the chain both receives and sends every segment.
    let messages = if p.ranks > 2 { 2.0 } else { 1.0 };
    let further = (p.segments - 1) as f64 * pace.block.max(messages * pace.overhead);
    if p.ranks == 1 { 0.0 } else { (p.ranks - 1) as f64 * pace.hop(1) + further }
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let from = (p.rank != p.root).then(|| p.prev());
    let to = (p.next() != p.root).then(|| p.next());
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let receive = from.map(|from| Step::recv(from, Place::Output, block));
        let send = to.map(|to| Step::send(to, Place::Output, block));
        receive.into_iter().chain(send)
    }))
}

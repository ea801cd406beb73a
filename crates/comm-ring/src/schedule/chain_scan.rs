//! Chain scan: each rank adds its contribution and passes the sum on to the next, segment by
//! segment.
//!
//! n-1 rounds for one segment; every rank receives each segment once and sends it at most once,
//! which is the minimum, so this suits large data in many segments. Contributions are combined in
//! the order of the ranks, for any length and number of ranks.

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
    let further = (p.segments - 1) as f64 * pace.block.max(messages * pace.overhead + pace.reduce);
    if p.ranks == 1 { 0.0 } else { (p.ranks - 1) as f64 * pace.hop_reduce(1) + further }
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let from = p.rank.checked_sub(1);
    let to = (p.rank + 1 < p.ranks).then_some(p.rank + 1);
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let receive = from.map(|from| Step::recv_reduce(from, Place::Output, Place::Output, block));
        let send = to.map(|to| Step::send(to, Place::Output, block));
        receive.into_iter().chain(send)
    }))
}

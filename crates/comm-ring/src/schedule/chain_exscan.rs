//! Chain exclusive scan: each rank keeps the sum that it receives, and sends that sum with its own
//! contribution added.
//!
//! Rounds, messages and the order of combination are those of the chain scan. The sum to be sent is
//! computed in a few slots of scratch.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps, chain_scan};

pub(super) fn slots(p: &Params) -> usize {
    let within = p.rank > 0 && p.rank + 1 < p.ranks;
    if within { p.slots(1) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    chain_scan::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    // The last rank combines nothing.
    let saved = if p.ranks > 1 { pacing.slowest(p).reduce } else { 0.0 };
    chain_scan::time(p, pacing) - saved
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let from = p.rank.checked_sub(1);
    let to = (p.rank + 1 < p.ranks).then_some(p.rank + 1);
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let sum = if from.is_some() { p.slot(0, segment) } else { Place::Input };
        let receive = from.map(|from| Step::recv(from, Place::Output, block));
        let combine = [Step::copy(sum, Place::Input, block), Step::reduce(sum, Place::Output, block)];
        let combine = (from.is_some() && to.is_some()).then_some(combine);
        let send = to.map(|to| Step::send(to, sum, block));
        receive.into_iter().chain(combine.into_iter().flatten()).chain(send)
    }))
}

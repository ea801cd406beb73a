//! Linear gather: every rank sends its chunk directly to the root.
//!
//! One round; the root receives n-1 chunks, the minimum. Every chunk travels once, so this is best
//! for large chunks, and it is the only algorithm if no rank but the root knows the lengths.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    Cost { rounds: usize::from(p.ranks > 1), messages: p.ranks - 1, blocks: p.ranks - 1 }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).fan(p.ranks - 1, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.rank != p.root {
        return Box::new(std::iter::once(Step::send(p.root, Place::Input, Blocks::one(p.rank))));
    }
    let own = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, Blocks::one(p.root)));
    // Starts with the successor of the root, so that no rank is always last.
    let receives = (1..p.ranks).map(move |distance| {
        let from = (p.root + distance) % p.ranks;
        Step::recv(from, Place::Output, Blocks::one(from))
    });
    Box::new(own.into_iter().chain(receives))
}

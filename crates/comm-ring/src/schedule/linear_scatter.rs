//! Linear scatter: the root sends every rank its chunk.
//!
//! One round; the root sends n-1 chunks, the minimum. Every chunk travels once, so this is best for
//! large chunks, and it is the only algorithm if no rank but the root knows the lengths.

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
        return Box::new(std::iter::once(Step::recv(p.root, Place::Output, Blocks::one(p.rank))));
    }
    let sends = (1..p.ranks).map(move |distance| {
        let to = (p.root + distance) % p.ranks;
        Step::send(to, Place::Input, Blocks::one(to))
    });
    // In place, the root's own chunk stays where it is.
    let own = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, Blocks::one(p.root)));
    Box::new(sends.chain(own))
}

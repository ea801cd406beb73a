//! Direct all-gather: every rank sends its chunk directly to every other.
//!
//! One round; each rank sends n-1 chunks, the minimum, in as many messages. The k-th message goes
//! to the rank k ahead, so that no rank receives from two ranks at once. A late message delays no
//! other, but all links of the network are in use at once.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    Cost { rounds: usize::from(p.ranks > 1), messages: p.ranks - 1, blocks: p.ranks - 1 }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).exchange(p.ranks - 1)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    // Each rank sends its own chunk from the input, so that no send waits for the copy.
    let own = p.own();
    let exchanges = (1..p.ranks).flat_map(move |distance| {
        let (to, from) = (p.ahead(distance), p.behind(distance));
        [Step::send(to, own, Blocks::one(p.rank)), Step::recv(from, Place::Output, Blocks::one(from))]
    });
    let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, Blocks::one(p.rank)));
    Box::new(exchanges.chain(copy))
}

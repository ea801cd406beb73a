//! Ring all-gather: each rank sends the chunk that it received in the round before.
//!
//! Each rank sends (n-1)/n of the result in n-1 rounds, the least that any all-gather can send.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = (p.ranks - 1) * p.segments;
    Cost { rounds: p.ranks - 1, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).pipeline(p.ranks - 1, p.segments, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    // Each rank sends its own chunk from the input, so that no send waits for the copy.
    let own = p.own();
    let copy = (!p.in_place).then(|| {
        (0..p.segments).map(move |segment| Step::copy(Place::Output, Place::Input, p.block(p.rank, segment)))
    });
    let rounds = (0..p.ranks - 1).flat_map(move |round| {
        let (give, take) = (p.behind(round), p.behind(round + 1));
        let from = if round == 0 { own } else { Place::Output };
        (0..p.segments).flat_map(move |segment| {
            [
                Step::send(p.next(), from, p.block(give, segment)),
                Step::recv(p.prev(), Place::Output, p.block(take, segment)),
            ]
        })
    });
    Box::new(copy.into_iter().flatten().chain(rounds))
}

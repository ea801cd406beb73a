//! Staged all-gather: every rank copies its chunk to a buffer that the other ranks of its host read
//! in place.
//!
//! This is the direct all-gather with an additional copy to scratch. If the ranks of a host read
//! that buffer in place, each message saves a copy: each of n ranks writes one chunk and reads n-1,
//! instead of writing and reading n-1. Collectives over memory that all ranks of a host share work
//! in the same way, for example those of Graham and Shipman, "MPI support for multi-core
//! architectures: optimized shared memory collectives", EuroPVM/MPI (2008). Otherwise the direct
//! algorithm is better.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    if p.ranks > 1 && !p.exposed { p.slots(1) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = (p.ranks - 1) * p.segments;
    Cost { rounds: usize::from(p.ranks > 1), messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, messages) = (pacing.slowest(p), (p.ranks - 1) * p.segments);
    match pace.staging() {
        Some((stage, pace)) => p.segments as f64 * stage + pace.exchange(messages),
        None => pace.exchange(messages),
    }
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let own = p.own();
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(p.rank, segment);
        let (staged, stage) = p.stage(p.slot(0, segment), own, block);
        let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, block));
        stage.into_iter().chain(exchange(&p, segment, staged, 0)).chain(copy)
    }))
}

/// Sends a segment of every chunk from the slot of its rank to the output of the others. Each rank
/// holds the chunk `ahead` places after its own.
pub(super) fn exchange(
    params: &Params,
    segment: usize,
    staged: Place,
    ahead: usize,
) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let block = p.block(p.ahead(ahead), segment);
    (1..p.ranks).flat_map(move |distance| {
        let (to, from) = (p.ahead(distance), p.behind(distance));
        let theirs = p.block(p.behind(distance + p.ranks - ahead), segment);
        [Step::send(to, staged, block), Step::recv(from, Place::Output, theirs)]
    })
}

//! Ring reduce-scatter: a partial sum of each chunk travels around the ring and ends at the chunk's
//! owner.
//!
//! Each rank sends (n-1)/n of the data in n-1 rounds, the least that any reduce-scatter can send. A
//! partial sum that arrives is combined with the rank's own contribution in the input and stored in
//! one of two alternating sets of scratch slots. Segments are processed in passes, so that the sets
//! stay small for any size of the data; within a pass, segments overlap.

use std::iter;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(params: &Params) -> usize {
    // With two ranks no partial sum is passed on.
    if params.in_place || params.ranks <= 2 { 0 } else { params.slots(2) }
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = (p.ranks - 1) * p.segments;
    Cost { rounds: p.ranks - 1, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).pipeline(p.ranks - 1, p.segments, true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.ranks == 1 {
        return Box::new((0..p.segments).flat_map(move |segment| alone(&p, p.block(0, segment))));
    }
    Box::new(p.passes().flat_map(move |segments| {
        (0..p.ranks - 1)
            .flat_map(move |round| segments.clone().flat_map(move |segment| exchange(&p, round, segment)))
    }))
}

fn alone(p: &Params, block: Blocks) -> impl Iterator<Item = Step> + use<> {
    let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, block));
    copy.into_iter().chain(iter::once(Step::finish(Place::Output, block)))
}

/// Performs a round of one segment: sends the partial sum of one chunk, and adds its contribution
/// to that of the next.
fn exchange(p: &Params, round: usize, segment: usize) -> impl Iterator<Item = Step> + use<> {
    let last = round + 2 == p.ranks;
    let give = p.block(p.behind(round + 1), segment);
    let take = p.block(p.behind(round + 2), segment);
    let scratch = |round: usize| p.slot(round % 2, segment);
    let from = match round {
        0 => p.own(),
        _ if p.in_place => Place::Output,
        _ => scratch(round - 1),
    };
    let into = if p.in_place || last { Place::Output } else { scratch(round) };
    [Step::send(p.next(), from, give), Step::recv_reduce(p.prev(), into, p.own(), take)]
        .into_iter()
        .chain(last.then_some(Step::finish(into, take)))
}

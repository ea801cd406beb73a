//! Staged reduce-scatter: every rank copies its data to a buffer that the other ranks of the host
//! read in place, and combines its chunk of all of them.
//!
//! It sends the messages of the direct reduce-scatter. The owner of a chunk adds one contribution
//! after the other where its sum is, in the order of their distances. So it needs no scratch for
//! partial sums, and if the data of all ranks is read in place, each byte of it is read once, and
//! each sum is written once.

use std::iter;
use std::ops::Range;

use comm_core::{Place, Step};

use super::{Cost, Pace, Pacing, Params, Steps};

/// Returns the number of sets of slots: one per rank, but no more than fit in the memory of a pass.
/// With more ranks, a contribution waits for one that was sent before it.
pub(super) fn sets(p: &Params) -> usize {
    p.ranks.min(p.pass.max(1))
}

pub(super) fn slots(p: &Params) -> usize {
    if p.ranks > 1 && !p.exposed { p.in_passes_of(sets(p)).slots(sets(p)) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    // A rank combines one contribution after the other, and so receives them without buffering.
    let messages = (p.ranks - 1) * p.segments;
    Cost { rounds: p.ranks - 1, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, messages) = (pacing.slowest(p), (p.ranks - 1) * p.segments);
    // All ranks copy their first segment before any of them reads; two ranks read every segment
    // only after it was copied, and a channel is read while it is filled.
    let waits = if p.ranks > 2 { 1 } else { messages };
    let copies = pace.staging().filter(|_| !p.exposed).map_or(0.0, |(stage, _)| waits as f64 * stage);
    copies + time_of(p, pace, messages)
}

/// Predicts the time in which a rank combines this many messages, which it reads in place if it
/// can.
pub(super) fn time_of(p: &Params, pace: &Pace, messages: usize) -> f64 {
    match pace.staging() {
        Some((_, read)) if p.exposed => read.pipeline(1, messages, true),
        Some((stage, read)) => messages as f64 * stage + read.pipeline(1, messages, true),
        None => pace.pipeline(1, messages, true),
    }
}

pub(super) fn steps(params: &Params) -> Steps {
    let sets = sets(params);
    let p = params.in_passes_of(sets);
    Box::new(p.passes().flat_map(move |segments| reduce(&p, sets, segments)))
}

/// Exchanges some segments of every chunk, and combines the segments of this rank's chunk.
pub(super) fn reduce(
    params: &Params,
    sets: usize,
    segments: Range<usize>,
) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    segments.flat_map(move |segment| {
        let own = p.block(p.rank, segment);
        let exchanges = (1..p.ranks).flat_map(move |distance| exchange(&p, sets, segment, distance));
        let alone = p.ranks == 1 && !p.in_place;
        let copy = alone.then_some(Step::copy(Place::Output, Place::Input, own));
        copy.into_iter().chain(exchanges).chain(iter::once(Step::finish(Place::Output, own)))
    })
}

/// Sends a segment of the chunk of the rank that is `distance` ahead, and combines this rank's
/// segment with the contribution of the rank that is as far back.
fn exchange(p: &Params, sets: usize, segment: usize, distance: usize) -> impl Iterator<Item = Step> + use<> {
    let (to, from) = (p.ahead(distance), p.behind(distance));
    let theirs = p.block(to, segment);
    let (staged, stage) = p.stage(p.slot(distance % sets, segment), p.own(), theirs);
    let addend = if distance == 1 { p.own() } else { Place::Output };
    let combine = Step::recv_reduce(from, Place::Output, addend, p.block(p.rank, segment));
    stage.into_iter().chain([Step::send(to, staged, theirs), combine])
}

//! Staged all-reduce: a reduce-scatter around the ring with its partial sums in a buffer that the
//! other ranks of the host read in place; then all ranks read the complete sums there.
//!
//! It moves the same data as the ring. On one host, however, each partial sum is written once,
//! whereas the ring writes it to its own memory and then to a channel, and each complete sum is
//! written once instead of n-1 times and read in one round; see the staged all-gather. Segments are
//! processed in passes, so that the buffer stays small for any size of the data.

use std::ops::Range;

use comm_core::{Place, Step};

use super::staged_all_gather::exchange;
use super::{Cost, Pacing, Params, Steps, ring_all_reduce, ring_reduce_scatter, staged_all_gather};

/// The number of sets of slots: one for the blocks that a rank sends in a round, one for those that
/// it receives in the same round.
const SETS: usize = 2;

pub(super) fn slots(p: &Params) -> usize {
    if p.ranks > 1 && !p.exposed { p.in_passes_of(SETS).slots(SETS) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let (scatter, gather) = (ring_reduce_scatter::cost(p), staged_all_gather::cost(p));
    Cost {
        rounds: scatter.rounds + gather.rounds,
        messages: scatter.messages + gather.messages,
        blocks: scatter.blocks + gather.blocks,
    }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    ring_reduce_scatter::time(p, pacing) + staged_all_gather::time(p, pacing)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = params.in_passes_of(SETS);
    if p.ranks == 1 {
        return ring_all_reduce::steps(params);
    }
    Box::new(p.passes().flat_map(move |segments| pass(&p, segments)))
}

/// Reduces and gathers some segments of every chunk.
fn pass(params: &Params, segments: Range<usize>) -> impl Iterator<Item = Step> + use<> {
    let (p, last) = (*params, params.ranks - 2);
    let all = segments.clone();
    let reducing =
        (0..=last).flat_map(move |round| all.clone().flat_map(move |segment| reduce(&p, round, segment)));
    let gathering = segments.flat_map(move |segment| exchange(&p, segment, partial(&p, last, segment), 1));
    reducing.chain(gathering)
}

/// Performs a round of the reduce-scatter: adds this rank's contribution to a partial sum, which
/// the next rank reads in place.
fn reduce(params: &Params, round: usize, segment: usize) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let (given, taken) = (p.block(p.behind(round), segment), p.block(p.behind(round + 1), segment));
    let from = round.checked_sub(1).map_or(Place::Output, |before| partial(&p, before, segment));
    let staged = partial(&p, round, segment);
    let is_whole = round + 2 == p.ranks;
    let is_elsewhere = is_whole && !p.exposed;
    let steps = [
        Some(Step::recv_reduce(p.prev(), staged, Place::Output, taken)),
        Some(Step::send(p.next(), from, given)),
        is_whole.then_some(Step::finish(staged, taken)),
        is_elsewhere.then_some(Step::copy(Place::Output, staged, taken)),
    ];
    steps.into_iter().flatten()
}

/// Returns the place of the partial sum of a round, where the next rank reads it.
fn partial(params: &Params, round: usize, segment: usize) -> Place {
    if params.exposed { Place::Output } else { params.slot(round % SETS, segment) }
}

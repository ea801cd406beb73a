//! Staged all-reduce: every rank copies its data to a buffer that the other ranks of the host read
//! in place, and combines its chunk of all of them; then all ranks read the complete sums there.
//!
//! It sends the messages of the direct all-reduce. If they are read in place, the data of a rank
//! passes through one buffer, which is reused in every pass and so stays in the cache, instead of a
//! channel for each receiver; and a complete sum is written once instead of n-1 times. Latency is
//! paid twice for any number of ranks, because staged messages are buffered.

use std::ops::Range;

use comm_core::{Place, Step};

use super::staged_reduce_scatter::{self, sets};
use super::{Cost, Pace, Pacing, Params, Steps, direct_all_reduce, staged_all_gather};

pub(super) use super::staged_reduce_scatter::slots;

pub(super) fn cost(p: &Params) -> Cost {
    // A rank combines one contribution after the other, and so receives them without buffering.
    Cost { rounds: if p.ranks > 1 { p.ranks } else { 0 }, ..direct_all_reduce::cost(p) }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, messages) = (pacing.slowest(p), (p.ranks - 1) * p.segments);
    let gather = match pace.staging() {
        // Nothing is staged, and results are written where they are received.
        Some((stage, read)) if p.exposed => Pace { block: stage, ..read }.exchange(messages),
        _ => staged_all_gather::time(p, pacing),
    };
    staged_reduce_scatter::time_of(p, pace, messages) + gather
}

pub(super) fn steps(params: &Params) -> Steps {
    let sets = sets(params);
    let p = params.in_passes_of(sets);
    Box::new(p.passes().flat_map(move |segments| pass(&p, sets, segments)))
}

/// Reduces and gathers some segments of every chunk.
fn pass(params: &Params, sets: usize, segments: Range<usize>) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let reducing = staged_reduce_scatter::reduce(&p, sets, segments.clone());
    reducing.chain(segments.flat_map(move |segment| gather(&p, segment)))
}

/// Lets all ranks read the complete segment of this one, and reads theirs.
fn gather(params: &Params, segment: usize) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let own = p.block(p.rank, segment);
    let (staged, stage) = p.stage(p.slot(0, segment), Place::Output, own);
    stage.into_iter().chain(staged_all_gather::exchange(&p, segment, staged, 0))
}

//! Staged all-reduce: a reduce-scatter around the ring, then every rank puts the chunk that it has where the others of its
//! host read it in place.
//!
//! It moves what the ring moves, but the second half of it is written once instead of n-1 times where the ranks of a host
//! read what is staged, and takes one round; see the staged all-gather.

use comm_core::Place;

use super::{Cost, Pacing, Params, Steps, ring_all_reduce, ring_reduce_scatter, staged_all_gather};

pub(super) fn slots(p: &Params) -> usize {
    staged_all_gather::slots(p)
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
    let p = *params;
    if p.ranks == 1 {
        return ring_all_reduce::steps(params);
    }
    let gather = move |segment| staged_all_gather::exchange(&p, segment, Place::Output, 1);
    let gathering = (0..p.segments).flat_map(gather);
    Box::new(ring_all_reduce::rounds(&p, 0..p.ranks - 1).chain(gathering))
}

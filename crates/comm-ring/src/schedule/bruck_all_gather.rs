//! Bruck all-gather: the run of chunks that a rank holds doubles in every round.
//!
//! Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997). ceil(log2 n)
//! rounds for any n; each rank sends n-1 chunks, the minimum. In the round of distance d, a rank
//! sends a run of chunks that starts with its own to the rank d behind, and receives the chunks
//! that follow the run that it holds.
//!
//! Chunks are received at their final position, so the result needs no rotation; a run that wraps
//! around the end of the data takes two messages instead.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps, around, distances, doubling_rounds};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// Returns the distance and the number of chunks of each round.
pub(super) fn rounds(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    // The last round moves the remaining chunks.
    distances(ranks).map(move |distance| (distance, distance.min(ranks - distance)))
}

/// Returns the number of rounds with a run that some rank must send as two messages.
pub(super) fn split(ranks: usize) -> usize {
    rounds(ranks).filter(|&(_, count)| count > 1).count()
}

pub(super) fn cost(p: &Params) -> Cost {
    Cost {
        rounds: doubling_rounds(p.ranks),
        messages: rounds(p.ranks).count() + split(p.ranks),
        blocks: p.ranks - 1,
    }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let hops = doubling_rounds(p.ranks) as f64 * pace.hop(0);
    hops + 2.0 * pace.overhead * split(p.ranks) as f64 + (p.ranks - 1) as f64 * pace.block
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let own = Blocks::one(p.rank);
    let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, own));
    let rounds = rounds(p.ranks).flat_map(move |(distance, count)| {
        let (to, from) = (p.behind(distance), p.ahead(distance));
        let gives =
            around(p.ranks, p.rank, count).map(|run| run.map(|run| Step::send(to, Place::Output, run)));
        let takes =
            around(p.ranks, from, count).map(|run| run.map(|run| Step::recv(from, Place::Output, run)));
        // A receive follows every send. If two sends came first, all ranks could wait for each
        // other.
        gives.into_iter().zip(takes).flat_map(|(give, take)| [give, take]).flatten()
    });
    Box::new(copy.into_iter().chain(rounds))
}

//! All-to-all by an all-gather: each rank receives all rows of the matrix and takes its column.
//!
//! The rows are gathered as in Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
//! all-to-all communications in multiport message-passing systems", IEEE Trans. Parallel Distrib.
//! Syst. 8 (1997): ceil(log2 n) rounds for any n, in which a rank sends n(n-1) chunks and keeps n*n
//! in scratch. That is n times the minimum, but in fewer messages than n-1, so this suits tiny
//! chunks, such as counts.
//!
//! The all-to-all of the same paper sends only about n/2 chunks in a round, but each in a separate
//! message.

use comm_core::{Blocks, Place, Step};

use super::bruck_all_gather::{rounds, split};
use super::{Cost, Pacing, Params, Steps, around, bruck_all_gather, doubling_rounds};

pub(super) const fn slots(p: &Params) -> usize {
    if p.ranks == 1 { 0 } else { p.ranks * p.ranks }
}

pub(super) fn cost(p: &Params) -> Cost {
    let rows = bruck_all_gather::cost(p);
    Cost { blocks: p.ranks * rows.blocks, ..rows }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let hops = doubling_rounds(p.ranks) as f64 * pace.hop(0);
    hops + 2.0 * pace.overhead * split(p.ranks) as f64 + cost(p).blocks as f64 * pace.block
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let row = move |first: usize, count: usize| Blocks { first: first * p.ranks, count: count * p.ranks };
    // Every block has the slot with its number.
    let slot = |blocks: Blocks| Place::Scratch { slot: blocks.first };
    let own = row(p.rank, 1);
    let copy = (p.ranks > 1).then_some(Step::copy(slot(own), Place::Input, own));
    let rounds = rounds(p.ranks).flat_map(move |(distance, count)| {
        let (to, from) = (p.behind(distance), p.ahead(distance));
        let rows = |first| around(p.ranks, first, count).map(|run| run.map(|run| row(run.first, run.count)));
        let gives = rows(p.rank).map(|run| run.map(|run| Step::send(to, slot(run), run)));
        let takes = rows(from).map(|run| run.map(|run| Step::recv(from, slot(run), run)));
        gives.into_iter().zip(takes).flat_map(|(give, take)| [give, take]).flatten()
    });
    let column = (0..p.ranks).map(move |from| {
        let block = Blocks::one(from * p.ranks + p.rank);
        let place = if from == p.rank { Place::Input } else { slot(block) };
        Step::copy(Place::Output, place, block)
    });
    Box::new(copy.into_iter().chain(rounds).chain(column))
}

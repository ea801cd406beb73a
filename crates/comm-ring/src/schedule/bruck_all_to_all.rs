//! Bruck's all-to-all: in the round of a power of two, ranks send all chunks whose distance has
//! that bit set.
//!
//! Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997). A chunk for
//! the rank `i` places ahead moves by 2^k of them in round k if bit k of `i` is set: ceil(log2 n)
//! rounds, in which a rank sends about n/2 chunks to one other rank. No two chunks of a round are
//! adjacent in the matrix, so each is a separate message.
//!
//! A chunk must not be received into the slot from which another one is sent in the same round, as
//! neither step could end before the other. There are therefore two sets of slots, with a slot for
//! every distance, and a chunk changes sets with every hop.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(p: &Params) -> usize {
    if p.ranks <= 2 { 0 } else { 2 * p.ranks }
}

/// Returns the exponent of the power of two of each round.
fn rounds(ranks: usize) -> std::ops::Range<u32> {
    0..ranks.next_power_of_two().ilog2()
}

/// Returns the distances that include a hop of `1 << round`.
fn distances(ranks: usize, round: u32) -> impl Iterator<Item = usize> {
    (1..ranks).filter(move |distance| distance >> round & 1 == 1)
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = rounds(p.ranks).map(|round| distances(p.ranks, round).count()).sum();
    // Each hop of a chunk waits for the ones before, so the distance with the most hops has the
    // longest chain.
    let hops = (1..p.ranks).map(|distance| distance.count_ones() as usize).max();
    Cost { rounds: hops.unwrap_or(0), messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, Cost { rounds, messages, .. }) = (pacing.slowest(p), cost(p));
    // The chunk with the most hops waits for nothing else; the others occupy the ports and the rank
    // in the meantime.
    let others = (messages - rounds) as f64 * pace.block.max(pace.overhead);
    let busy = 2.0 * messages as f64 * pace.overhead;
    (rounds as f64 * pace.hop(1) + others).max(busy)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let between = move |from: usize, to: usize| Blocks::one(from * p.ranks + to);
    let side =
        move |distance: usize, hops: u32| Place::Scratch { slot: (hops as usize % 2) * p.ranks + distance };
    let rounds = rounds(p.ranks).flat_map(move |round| {
        let (to, from) = (p.ahead(1 << round), p.behind(1 << round));
        distances(p.ranks, round).flat_map(move |distance| {
            // The distance that the chunk has moved before this round, and its number of hops.
            let gone = distance % (1 << round);
            let hops = gone.count_ones();
            let given = between(p.behind(gone), (p.behind(gone) + distance) % p.ranks);
            let source = p.behind(gone + (1 << round));
            let taken = between(source, (source + distance) % p.ranks);
            let give = if gone == 0 { Place::Input } else { side(distance, hops - 1) };
            let is_there = distance >> (round + 1) == 0;
            let take = if is_there { Place::Output } else { side(distance, hops) };
            [Step::send(to, give, given), Step::recv(from, take, taken)]
        })
    });
    let own = Step::copy(Place::Output, Place::Input, between(p.rank, p.rank));
    Box::new(rounds.chain([own]))
}

//! Circulant reduce-scatter: ranks exchange runs of chunks over distances that halve, rounded up.
//!
//! Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", arXiv:2410.14234
//! (2024). ceil(log2 n) rounds for any n, in which each rank sends n-1 chunks: both are the
//! minimum. Chunks are counted from the rank's own. In the round of distance d, in which a rank has
//! partial sums of its first d' chunks, it sends those from d on to the rank d ahead, which adds
//! them to its first d'-d.
//!
//! A run that wraps around the end of the data takes two messages. Out of place, partial sums are
//! in scratch, where runs are divided; so all chunks must have the same size.

use std::ops::Range;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pace, Pacing, Params, Steps, around, halvings};

/// A round: chunks from `distance` on are sent over `distance`, and as many from the start are
/// received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) distance: usize,
    pub(super) count: usize,
}

/// Returns the rounds of the reduce-scatter, in order.
pub(super) fn rounds(ranks: usize) -> impl DoubleEndedIterator<Item = Round> {
    let distances = halvings(ranks).skip(1);
    halvings(ranks).zip(distances).map(|(kept, distance)| Round { distance, count: kept - distance })
}

/// Returns the length of the longest chain of messages in which each carries a sum that the one
/// before it has changed. A round that receives fewer chunks than it keeps leaves the others as
/// they are, so the chain may be shorter than the number of rounds. In the reverse order, it is as
/// long.
pub(super) fn chain(ranks: usize) -> usize {
    let rounds: Vec<Round> = rounds(ranks).collect();
    let mut lengths: Vec<usize> = Vec::with_capacity(rounds.len());
    for round in &rounds {
        let earlier = rounds.iter().zip(&lengths).filter(|(earlier, _)| round.distance < earlier.count);
        let longest = earlier.map(|(_, length)| *length).max();
        lengths.push(1 + longest.unwrap_or(0));
    }
    lengths.into_iter().max().unwrap_or(0)
}

/// Returns the number of rounds with a run that some rank must send as two messages. The last rank
/// receives all of these in two.
pub(super) fn split(ranks: usize) -> usize {
    rounds(ranks).filter(|round| round.count > 1).count()
}

/// Predicts the time of all rounds, if all ranks start at the same time.
pub(super) fn time_of(p: &Params, pace: &Pace, reduces: bool) -> f64 {
    let (chain, blocks) = (chain(p.ranks), (p.ranks - 1) as f64);
    let reduce = if reduces { pace.reduce } else { 0.0 };
    // Messages outside of the chain occupy their rank, in part while it would wait otherwise.
    let others = rounds(p.ranks).count() + split(p.ranks) - chain;
    chain as f64 * pace.hop(0) + pace.overhead * others as f64 + blocks * (pace.block + reduce)
}

/// Returns the messages of a round: `send` and `recv` make the step of a run of chunks, given the
/// place of its first chunk among those of the rank.
pub(super) fn exchange(
    p: Params,
    send: (Range<usize>, impl Fn(usize, Blocks) -> Step),
    recv: (Range<usize>, impl Fn(usize, Blocks) -> Step),
) -> impl Iterator<Item = Step> {
    let gives = runs(&p, &send.0).map(|run| run.map(|(first, blocks)| send.1(first, blocks)));
    let takes = runs(&p, &recv.0).map(|run| run.map(|(first, blocks)| recv.1(first, blocks)));
    // A receive follows every send. If two sends came first, all ranks could wait for each other.
    gives.into_iter().zip(takes).flat_map(|(give, take)| [give, take]).flatten()
}

/// Returns the runs of blocks of some chunks of a rank, which are counted from its own, each with
/// its first chunk.
fn runs(p: &Params, chunks: &Range<usize>) -> [Option<(usize, Blocks)>; 2] {
    let [head, tail] = around(p.ranks, p.ahead(chunks.start), chunks.len());
    let tail_start = chunks.start + head.map_or(0, |head| head.count);
    [head.map(|head| (chunks.start, head)), tail.map(|tail| (tail_start, tail))]
}

/// Returns the number of chunks whose partial sums are in scratch: those that a rank has after the
/// first round.
fn partial_sums(p: &Params) -> usize {
    if p.in_place || p.ranks <= 2 { 0 } else { p.ranks.div_ceil(2) }
}

pub(super) fn slots(p: &Params) -> usize {
    partial_sums(p)
}

pub(super) fn cost(p: &Params) -> Cost {
    let rounds = rounds(p.ranks).count();
    Cost { rounds, messages: rounds + split(p.ranks), blocks: p.ranks - 1 }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    time_of(p, pacing.slowest(p), true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let own_chunk = Blocks::one(p.rank);
    if p.ranks == 1 {
        let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, own_chunk));
        return Box::new(copy.into_iter().chain([Step::finish(Place::Output, own_chunk)]));
    }
    // The first round of an odd number of ranks leaves the last chunk that it keeps as it is.
    let left_alone = partial_sums(&p).checked_sub(1).filter(|_| !p.ranks.is_multiple_of(2));
    let copy = left_alone.map(|chunk| {
        let blocks = Blocks::one(p.ahead(chunk));
        Step::copy(Place::Scratch { slot: chunk }, Place::Input, blocks)
    });
    let exchanges = rounds(p.ranks).flat_map(move |round| reduce(&p, round));
    Box::new(copy.into_iter().chain(exchanges).chain([Step::finish(Place::Output, own_chunk)]))
}

/// Performs a round: sends partial sums, and adds this rank's to those that it receives.
fn reduce(params: &Params, Round { distance, count }: Round) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let is_first = distance + count == p.ranks;
    let partial = move |slot| if p.in_place { Place::Output } else { Place::Scratch { slot } };
    let before = move |chunk| if is_first { p.own() } else { partial(chunk) };
    let after = move |chunk| if distance == 1 { Place::Output } else { partial(chunk) };
    let (to, from) = (p.ahead(distance), p.behind(distance));
    exchange(
        p,
        (distance..distance + count, move |chunk, run| Step::send(to, before(chunk), run)),
        (0..count, move |chunk, run| Step::recv_reduce(from, after(chunk), before(chunk), run)),
    )
}

//! Recursive halving and doubling all-reduce, for any number of ranks.
//!
//! Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner
//! and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
//! Comput. Appl. 19 (2005). A reduce-scatter in which partners exchange halves of the data that
//! they still hold, then an all-gather in the reverse order: 2 log2 n rounds, in which each rank
//! sends 2(n-1)/n of the data, the minimum of any all-reduce. If n is not a power of two, every
//! rank beyond the largest power of two sends all its data to a neighbour and receives the result:
//! two more rounds, and twice the data for those neighbours.
//!
//! The first partner is the nearest, so contributions are combined as in recursive doubling. A rank
//! sends one half and keeps the other, so no scratch is needed.

use comm_core::{Blocks, Place, Step};

use super::tree::Tree;
use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    let tree = Tree::new(p.ranks);
    let folded = usize::from(tree.folds());
    Cost {
        rounds: 2 * (tree.rounds() + folded),
        messages: 2 * tree.rounds() + folded,
        blocks: 2 * (tree.core() - 1) + folded * tree.core(),
    }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, tree) = (pacing.slowest(p), Tree::new(p.ranks));
    let halves = (1..=tree.rounds()).map(|round| tree.core() >> round);
    let rounds: f64 = halves.map(|half| pace.hop_reduce(half) + pace.hop(half)).sum();
    let fold = if tree.folds() { pace.hop_reduce(tree.core()) + pace.hop(tree.core()) } else { 0.0 };
    rounds + fold
}

/// Returns the blocks that a number holds after this many rounds of the reduce-scatter, or before
/// as many rounds of the all-gather.
fn kept(tree: Tree, number: usize, rounds: usize) -> Blocks {
    let upper = (0..rounds).filter(|round| number >> round & 1 == 1);
    Blocks { first: upper.map(|round| tree.core() >> (round + 1)).sum(), count: tree.core() >> rounds }
}

pub(super) fn steps(params: &Params) -> Steps {
    let (p, tree) = (*params, Tree::new(params.ranks));
    let all = kept(tree, 0, 0);
    if let Some(leader) = tree.folds_into(p.rank) {
        let exchange = [Step::send(leader, Place::Output, all), Step::recv(leader, Place::Output, all)];
        return Box::new(exchange.into_iter());
    }
    let partner = tree.partner(p.rank);
    let fold_in = partner.map(|partner| Step::recv_reduce(partner, Place::Output, Place::Output, all));
    let fold_out = partner.map(|partner| Step::send(partner, Place::Output, all));
    let number = tree.number(p.rank);
    // The partner's half and this rank's half of the blocks that both hold.
    let round = move |round: usize| {
        let other = number ^ 1 << round;
        (tree.leader(other), kept(tree, other, round + 1), kept(tree, number, round + 1))
    };
    let halving = (0..tree.rounds()).map(round).flat_map(|(partner, theirs, ours)| {
        [
            Step::send(partner, Place::Output, theirs),
            Step::recv_reduce(partner, Place::Output, Place::Output, ours),
        ]
    });
    let doubling = (0..tree.rounds()).rev().map(round).flat_map(|(partner, theirs, ours)| {
        [Step::send(partner, Place::Output, ours), Step::recv(partner, Place::Output, theirs)]
    });
    let finish = Step::finish(Place::Output, kept(tree, number, tree.rounds()));
    Box::new(fold_in.into_iter().chain(halving).chain([finish]).chain(doubling).chain(fold_out))
}

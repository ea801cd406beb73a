//! Recursive doubling all-reduce, for any number of ranks.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J. High
//! Perform. Comput. Appl. 19 (2005). ceil(log2 n) rounds, two more when n is no power of two; each rank sends the
//! whole data in every round, so it is for small data.
//!
//! Partners exchange whole vectors, so each receives into scratch: with a reduction straight into the vector that is
//! being sent, both would wait for the other to receive first. Both then combine the same two operands, and the
//! operators are commutative, so all ranks hold the same bits after every round.

use std::iter;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

const ALL: Blocks = Blocks::one(0);

pub(super) const fn slots(params: &Params) -> usize {
    // Two, so that a vector can arrive while the one before is still being combined.
    if params.ranks == 1 { 0 } else { 2 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let doublings = p.ranks.ilog2() as usize;
    let folded = usize::from(!p.ranks.is_power_of_two());
    // Who stands for two ranks sends to its partner at the end, and receives from it at the start.
    let messages = doublings + folded;
    Cost { rounds: doublings + 2 * folded, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let doublings = p.ranks.ilog2() as usize;
    let folded = if p.ranks.is_power_of_two() { 0.0 } else { pace.hop_reduce(1) + pace.hop(1) };
    doublings as f64 * pace.hop_reduce(1) + folded
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let core = 1 << p.ranks.ilog2();
    let folded = 2 * (p.ranks - core);
    // The first ranks pair up, so that a power of two remain: the even one gives its data and waits for the result.
    if p.rank < folded && p.rank.is_multiple_of(2) {
        let partner = p.rank + 1;
        return Box::new(
            [Step::send(partner, Place::Output, ALL), Step::recv(partner, Place::Output, ALL)].into_iter(),
        );
    }
    let folds = p.rank < folded;
    let fold_in = folds.then(|| Step::recv_reduce(p.rank - 1, Place::Output, ALL));
    let fold_out = folds.then(|| Step::send(p.rank - 1, Place::Output, ALL));
    let number = if folds { p.rank / 2 } else { p.rank - folded / 2 };
    let rank_of = move |number: usize| if number < folded / 2 { 2 * number + 1 } else { number + folded / 2 };
    let rounds = (0..core.ilog2()).flat_map(move |round| {
        let partner = rank_of(number ^ (1 << round));
        let arrived = Place::Scratch { slot: round as usize % 2 };
        [
            Step::send(partner, Place::Output, ALL),
            Step::recv(partner, arrived, ALL),
            Step::reduce(Place::Output, arrived, ALL),
        ]
    });
    let finish = iter::once(Step::finish(Place::Output, ALL));
    Box::new(fold_in.into_iter().chain(rounds).chain(finish).chain(fold_out))
}

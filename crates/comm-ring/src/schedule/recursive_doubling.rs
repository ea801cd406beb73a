//! Recursive doubling all-reduce, for any number of ranks.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). floor(log2 n) rounds, and two more if n is not a
//! power of two: every rank beyond the largest power of two sends its data to a neighbour and
//! receives the result. Each rank sends all data in every round, so this suits small data.
//!
//! Partners exchange whole vectors, so each receives into scratch: with a reduction straight into
//! the vector that is being sent, each would wait for the other to receive first. Both then combine
//! the same two operands, and the operators are commutative, so all ranks hold the same bits after
//! every round. A contribution that is not in the output is sent and combined where it is.

use std::iter;

use comm_core::{Blocks, Place, Step};

use super::tree::Tree;
use super::{Cost, Pacing, Params, Steps};

const ALL: Blocks = Blocks::one(0);

pub(super) const fn slots(params: &Params) -> usize {
    match params.ranks {
        1 => 0,
        2 if !params.in_place => 0,
        // So that a vector can arrive while the one before is still being combined.
        _ => 2,
    }
}

pub(super) fn cost(p: &Params) -> Cost {
    let tree = Tree::new(p.ranks);
    let folded = usize::from(tree.folds());
    // The leader of a pair receives from its partner at the start, and sends to it at the end.
    let messages = tree.rounds() + folded;
    Cost { rounds: tree.rounds() + 2 * folded, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, tree) = (pacing.slowest(p), Tree::new(p.ranks));
    let folded = p.ranks - tree.core();
    let rounds = tree.rounds() + usize::from(tree.folds());
    let further = match 2 * folded {
        0 => 0.0,
        // The longest path is from a folded rank to the opposite rank, which leads a pair too, and
        // to its partner.
        twice if twice > tree.core() => pace.hop(1),
        // The path ends at the opposite rank; but the leader of a pair has one more message to send
        // and to receive.
        _ => pace.block.max(2.0 * pace.overhead),
    };
    rounds as f64 * pace.hop_reduce(1) + further
}

pub(super) fn steps(params: &Params) -> Steps {
    let (p, tree) = (*params, Tree::new(params.ranks));
    if let Some(leader) = tree.folds_into(p.rank) {
        let exchange = [Step::send(leader, p.own(), ALL), Step::recv(leader, Place::Output, ALL)];
        return Box::new(exchange.into_iter());
    }
    let copy = (p.ranks == 1 && !p.in_place).then_some(Step::copy(Place::Output, Place::Input, ALL));
    let partner = tree.partner(p.rank);
    let fold_in = partner.map(|partner| Step::recv_reduce(partner, Place::Output, p.own(), ALL));
    let fold_out = partner.map(|partner| Step::send(partner, Place::Output, ALL));
    let number = tree.number(p.rank);
    let rounds = (0..tree.rounds()).flat_map(move |round| {
        let other = tree.leader(number ^ 1 << round);
        let is_apart = round == 0 && partner.is_none() && !p.in_place;
        let exchange = if is_apart { exchange_input(other) } else { exchange_output(other, round % 2) };
        exchange.into_iter().flatten()
    });
    let finish = iter::once(Step::finish(Place::Output, ALL));
    Box::new(copy.into_iter().chain(fold_in).chain(rounds).chain(finish).chain(fold_out))
}

/// Exchanges the inputs, and combines both into the output.
fn exchange_input(other: usize) -> [Option<Step>; 3] {
    let combine = Step::recv_reduce(other, Place::Output, Place::Input, ALL);
    [Some(Step::send(other, Place::Input, ALL)), Some(combine), None]
}

/// Exchanges the outputs, and combines the other rank's into this one's.
fn exchange_output(other: usize, slot: usize) -> [Option<Step>; 3] {
    let arrived = Place::Scratch { slot };
    [
        Some(Step::send(other, Place::Output, ALL)),
        Some(Step::recv(other, arrived, ALL)),
        Some(Step::reduce(Place::Output, arrived, ALL)),
    ]
}

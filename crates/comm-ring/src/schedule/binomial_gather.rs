//! Binomial tree gather: each rank sends the chunks of its subtree to its parent.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). ceil(log2 n) messages arrive at the root, with
//! all n-1 chunks; a rank sends the chunks of its whole subtree in one message. A run that wraps
//! around the end of the data takes two messages. An inner rank keeps its subtree's chunks in
//! scratch, at most n/2 of them.
//!
//! A run is assembled in the slots in which its parts arrived, so all chunks must have the same
//! size.

use comm_core::{Blocks, Place, Step};

use super::binomial_broadcast::Position;
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    let position = Position::new(p);
    match position.subtree(position.number()).count {
        chunks if position.parent().is_some() && chunks > 1 => chunks,
        _ => 0,
    }
}

pub(super) fn cost(p: &Params) -> Cost {
    let children = p.ranks.next_power_of_two().ilog2() as usize;
    // With four or more ranks, and for some roots, a run that reaches the root wraps around the
    // end.
    let split = usize::from(p.ranks > 3);
    Cost { rounds: p.ranks.ilog2() as usize, messages: children + split, blocks: p.ranks - 1 }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    // The last message on the longest path holds half of the chunks, the one before a quarter, and
    // so on.
    f64::from(p.ranks.ilog2()) * pace.hop(0) + (p.ranks - 1) as f64 * pace.block
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let position = Position::new(&p);
    let number = position.number();
    let ours = position.subtree(number);
    let held = |number: usize| match position.parent() {
        None => Place::Output,
        Some(_) if ours.count == 1 => Place::Input,
        Some(_) => Place::Scratch { slot: number - ours.first },
    };
    let own = held(number);
    let copied = own != Place::Input && !(own == Place::Output && p.in_place);
    let mut steps = Vec::new();
    steps.extend(copied.then_some(Step::copy(own, Place::Input, Blocks::one(p.rank))));
    for (from, theirs) in position.branches() {
        steps.extend(position.runs(theirs).map(|(number, run)| Step::recv(from, held(number), run)));
    }
    if let Some(to) = position.parent() {
        steps.extend(position.runs(ours).map(|(number, run)| Step::send(to, held(number), run)));
    }
    Box::new(steps.into_iter())
}

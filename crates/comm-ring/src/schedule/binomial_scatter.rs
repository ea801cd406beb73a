//! Binomial tree scatter: each rank sends its children the chunks of their subtrees.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). ceil(log2 n) messages leave the root, with n-1
//! chunks; a rank receives the chunks of its whole subtree in one message. A run that wraps around
//! the end of the data takes two messages. An inner rank keeps its subtree's chunks in scratch, at
//! most n/2 of them.
//!
//! A rank forwards parts of a run from slots in its middle, so all chunks must have the same size.

use comm_core::{Blocks, Place, Step};

use super::binomial_broadcast::Position;
use super::{Cost, Pacing, Params, Steps, binomial_gather};

pub(super) fn slots(p: &Params) -> usize {
    binomial_gather::slots(p)
}

/// Returns the same as in the gather, which is this schedule in reverse.
pub(super) fn cost(p: &Params) -> Cost {
    binomial_gather::cost(p)
}

/// Returns the same as in the gather, which is this schedule in reverse.
pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    binomial_gather::time(p, pacing)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let position = Position::new(&p);
    let number = position.number();
    let ours = position.subtree(number);
    let held = |number: usize| match position.parent() {
        None => Place::Input,
        Some(_) if ours.count == 1 => Place::Output,
        Some(_) => Place::Scratch { slot: number - ours.first },
    };
    let mut steps = Vec::new();
    if let Some(from) = position.parent() {
        steps.extend(position.runs(ours).map(|(number, run)| Step::recv(from, held(number), run)));
    }
    // The largest subtree has the longest path, so it is served first.
    for (to, theirs) in position.branches().rev() {
        steps.extend(position.runs(theirs).map(|(number, run)| Step::send(to, held(number), run)));
    }
    // In place, the root's own chunk stays where it is.
    let own = held(number);
    let copied = own != Place::Output && !(own == Place::Input && p.in_place);
    steps.extend(copied.then_some(Step::copy(Place::Output, own, Blocks::one(p.rank))));
    Box::new(steps.into_iter())
}

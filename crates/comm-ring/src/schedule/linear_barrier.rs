//! Linear barrier: rank 0 receives a message from every rank, then sends one to every rank.
//!
//! Two rounds, with n-1 messages each way at rank 0, so this suits small groups. Unlike in other
//! barriers, one rank receives from every other directly, and therefore knows exactly which ranks
//! have arrived.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

const ALL: Blocks = Blocks::one(0);
const ROOT: usize = 0;

pub(super) const fn slots(p: &Params) -> usize {
    // A slot per rank lets messages arrive in any order. The blocks of a barrier are empty, and so
    // are their slots.
    if p.rank == ROOT { p.ranks - 1 } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = p.ranks - 1;
    Cost { rounds: if messages == 0 { 0 } else { 2 }, messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    pace.fan(p.ranks - 1, true) + pace.fan(p.ranks - 1, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.rank != ROOT {
        return Box::new(
            [Step::send(ROOT, Place::Output, ALL), Step::recv(ROOT, Place::Output, ALL)].into_iter(),
        );
    }
    let others = 1..p.ranks;
    let arrived = |other: usize| Place::Scratch { slot: other - 1 };
    let receives = others.clone().map(move |other| Step::recv(other, arrived(other), ALL));
    let reduces = others.clone().map(move |other| Step::reduce(Place::Output, arrived(other), ALL));
    let sends = others.map(|other| Step::send(other, Place::Output, ALL));
    Box::new(receives.chain(reduces).chain(sends))
}

//! Star barrier: rank 0 hears from every rank, then tells every rank.
//!
//! Two rounds, with n-1 messages each way at rank 0, so it is for few ranks. What it has over other barriers is that
//! one rank hears from every other itself, and so knows exactly who has arrived.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

const ALL: Blocks = Blocks::one(0);
const HUB: usize = 0;

pub(super) const fn slots(p: &Params) -> usize {
    // Ranks are heard in whichever order they arrive. The blocks of a barrier are empty, and so are their slots.
    if p.rank == HUB { p.ranks - 1 } else { 0 }
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
    if p.rank != HUB {
        return Box::new(
            [Step::send(HUB, Place::Output, ALL), Step::recv(HUB, Place::Output, ALL)].into_iter(),
        );
    }
    let others = 1..p.ranks;
    let arrived = |other: usize| Place::Scratch { slot: other - 1 };
    let hear = others.clone().map(move |other| Step::recv(other, arrived(other), ALL));
    let join = others.clone().map(move |other| Step::reduce(Place::Output, arrived(other), ALL));
    let tell = others.map(|other| Step::send(other, Place::Output, ALL));
    Box::new(hear.chain(join).chain(tell))
}

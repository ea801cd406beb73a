//! Star reduce-scatter: rank 0 hears the data of every rank, combines it, and tells every rank its chunk.
//!
//! Two rounds, with n-1 messages each way at rank 0 and hardly any elsewhere, so all ranks together send 2(n-1) messages
//! where others send n(n-1) or n log2 n: for little data, above all where messages cost much work and ranks share
//! processors. Rank 0 keeps n times the data in scratch.
//!
//! It combines chunks in runs and passes them on one by one, so all must have the same size.

use std::iter;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

const HUB: usize = 0;

pub(super) const fn slots(p: &Params) -> usize {
    // Ranks are heard in whichever order they arrive.
    if p.rank == HUB && p.ranks > 1 { p.ranks * p.ranks } else { 0 }
}

pub(super) const fn cost(p: &Params) -> Cost {
    let messages = p.ranks - 1;
    Cost { rounds: if messages == 0 { 0 } else { 2 }, messages, blocks: messages * p.ranks }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    pace.of(p.ranks).fan(p.ranks - 1, true) + pace.fan(p.ranks - 1, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let given = if p.in_place { Place::Output } else { Place::Input };
    let (all, own) = (Blocks { first: 0, count: p.ranks }, Blocks::one(p.rank));
    let finish = Step::finish(Place::Output, own);
    if p.ranks == 1 {
        let copy = (!p.in_place).then_some(Step::copy(Place::Output, given, own));
        return Box::new(copy.into_iter().chain([finish]));
    }
    if p.rank != HUB {
        let exchange = [Step::send(HUB, given, all), Step::recv(HUB, Place::Output, own), finish];
        return Box::new(exchange.into_iter());
    }
    let (others, slot) = (1..p.ranks, |slot| Place::Scratch { slot });
    let hear = others.clone().map(move |other| Step::recv(other, slot(other * p.ranks), all));
    let join = others.clone().map(move |other| Step::reduce(slot(0), slot(other * p.ranks), all));
    let tell = others.map(move |other| Step::send(other, slot(other), Blocks::one(other)));
    let copy = Step::copy(Place::Output, slot(HUB), own);
    Box::new(
        iter::once(Step::copy(slot(0), given, all)).chain(hear).chain(join).chain(tell).chain([copy, finish]),
    )
}

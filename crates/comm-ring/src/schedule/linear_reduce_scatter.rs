//! Linear reduce-scatter: rank 0 receives the data of every rank, combines it, and sends every rank
//! its chunk.
//!
//! Two rounds, with n-1 messages each way at rank 0 and one at every other rank. All ranks together
//! send 2(n-1) messages, whereas other algorithms send n(n-1) or n log2 n, so this suits small
//! data, above all if messages are expensive and ranks share processors. Rank 0 keeps n times the
//! data in scratch.
//!
//! It combines chunks in runs and sends them one by one, so all chunks must have the same size.

use std::iter;

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

const ROOT: usize = 0;

pub(super) const fn slots(p: &Params) -> usize {
    // Slots for every rank let messages arrive in any order.
    if p.rank == ROOT && p.ranks > 1 { p.ranks * p.ranks } else { 0 }
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
    let given = p.own();
    let (all, own) = (Blocks { first: 0, count: p.ranks }, Blocks::one(p.rank));
    let finish = Step::finish(Place::Output, own);
    if p.ranks == 1 {
        let copy = (!p.in_place).then_some(Step::copy(Place::Output, p.own(), own));
        return Box::new(copy.into_iter().chain([finish]));
    }
    if p.rank != ROOT {
        let exchange = [Step::send(ROOT, given, all), Step::recv(ROOT, Place::Output, own), finish];
        return Box::new(exchange.into_iter());
    }
    let (others, slot) = (1..p.ranks, |slot| Place::Scratch { slot });
    let receives = others.clone().map(move |other| Step::recv(other, slot(other * p.ranks), all));
    let reduces = others.clone().map(move |other| Step::reduce(slot(0), slot(other * p.ranks), all));
    let sends = others.map(move |other| Step::send(other, slot(other), Blocks::one(other)));
    let copy = Step::copy(Place::Output, slot(ROOT), own);
    Box::new(
        iter::once(Step::copy(slot(0), given, all))
            .chain(receives)
            .chain(reduces)
            .chain(sends)
            .chain([copy, finish]),
    )
}

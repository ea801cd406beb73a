//! Binomial tree reduce, segment by segment: the broadcast's tree, from the leaves to the root.
//!
//! ceil(log2 n) rounds for one segment; every rank but the root sends each segment once. Leaves send straight from
//! the caller's input; inner ranks add up in a few scratch slots, so that nothing of the caller's is written.

use comm_core::{Place, Step};

use super::binomial_broadcast::Position;
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(params: &Params) -> usize {
    let position = Position::new(params);
    let inner = position.parent().is_some() && !position.children().is_empty();
    if inner { params.slots(1) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    Cost { rounds: levels, messages: levels * p.segments, blocks: levels * p.segments }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    // The root takes in each segment once for every level.
    let further = (p.segments - 1) * levels;
    levels as f64 * pace.hop_reduce(1) + further as f64 * pace.block.max(pace.overhead + pace.reduce)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let position = Position::new(&p);
    let (parent, children) = (position.parent(), position.children());
    Box::new((0..p.segments).flat_map(move |segment| {
        let block = p.block(0, segment);
        let sum = match (parent, children.is_empty()) {
            (None, _) => Place::Output,
            (Some(_), true) => Place::Input,
            (Some(_), false) => p.slot(0, segment),
        };
        // The own contribution is in the sum already, or joins it after the first child's.
        let joined = sum == Place::Input || (sum == Place::Output && p.in_place);
        let copy = (!joined && children.is_empty()).then_some(Step::copy(sum, Place::Input, block));
        let receives = children.clone().into_iter().enumerate().flat_map(move |(at, from)| {
            if at == 0 && !joined {
                [Some(Step::recv(from, sum, block)), Some(Step::reduce(sum, Place::Input, block))]
            } else {
                [Some(Step::recv_reduce(from, sum, block)), None]
            }
        });
        let end = match parent {
            Some(to) => Step::send(to, sum, block),
            None => Step::finish(sum, block),
        };
        copy.into_iter().chain(receives.flatten()).chain([end])
    }))
}

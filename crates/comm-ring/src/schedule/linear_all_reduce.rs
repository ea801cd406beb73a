//! Linear all-reduce: every rank sends its data to rank 0, which combines all contributions in the
//! order of the tree and sends the result to every rank.
//!
//! Latency is paid twice if messages are buffered, and floor(n/2) + 1 times without buffering. Rank
//! 0 receives the data of all ranks and sends as much, so this is fastest for few ranks and very
//! little data.

use comm_core::{Place, Step};

use super::ordered_fan_in::{self, FanIn};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    if p.rank == 0 { p.slots(ordered_fan_in::slots(p.ranks)) } else { 0 }
}

pub(super) fn cost(p: &Params) -> Cost {
    // Rank 0 sends as many messages as it receives. Without buffering it receives one message for
    // every two numbers.
    Cost { rounds: p.ranks / 2 + usize::from(p.ranks > 1), ..ordered_fan_in::cost(p) }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, others) = (pacing.slowest(p), p.ranks - 1);
    let further = ((p.segments - 1) * others) as f64;
    // While rank 0 sends one segment to every rank, it receives the next.
    pace.fan(others, true)
        + pace.fan(others, false)
        + further * pace.block.max(2.0 * pace.overhead + pace.reduce)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new((0..p.segments).flat_map(move |segment| -> Steps {
        let block = p.block(0, segment);
        if p.rank != 0 {
            let exchange = [Step::send(0, Place::Output, block), Step::recv(0, Place::Output, block)];
            return Box::new(exchange.into_iter());
        }
        let results = (1..p.ranks).map(move |to| Step::send(to, Place::Output, block));
        Box::new(FanIn::new(&p, 0, segment, Place::Output).recv_all().chain(results))
    }))
}

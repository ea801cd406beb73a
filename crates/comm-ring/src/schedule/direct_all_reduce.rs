//! Direct all-reduce: the direct reduce-scatter, then every rank sends its reduced chunk directly
//! to all others.
//!
//! The cost is that of the direct reduce-scatter, and as much data again in one more round: each
//! rank sends 2(n-1)/n of the data, the minimum of any all-reduce, in 2(n-1) messages for each
//! segment. Latency is paid twice for any number of ranks if messages are buffered. In exchange, a
//! rank communicates with all others at once, unlike in the ring.

use comm_core::{Place, Step};

use super::direct_reduce_scatter::exchange;
use super::ordered_fan_in::{self, peers};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    p.slots(ordered_fan_in::slots(p.ranks))
}

pub(super) fn cost(p: &Params) -> Cost {
    let scatter = ordered_fan_in::cost(p);
    Cost {
        rounds: scatter.rounds + usize::from(p.ranks > 1),
        messages: 2 * scatter.messages,
        blocks: 2 * scatter.blocks,
    }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, messages) = (pacing.slowest(p), (p.ranks - 1) * p.segments);
    pace.pipeline(1, messages, true) + pace.pipeline(1, messages, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let reduce_scatter = (0..p.segments).flat_map(move |segment| exchange(&p, segment));
    let all_gather = (0..p.segments).flat_map(move |segment| {
        peers(&p).flat_map(move |peer| {
            [
                Step::send(peer.rank, Place::Output, p.block(p.rank, segment)),
                Step::recv(peer.rank, Place::Output, p.block(peer.rank, segment)),
            ]
        })
    });
    Box::new(reduce_scatter.chain(all_gather))
}

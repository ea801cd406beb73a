//! Direct reduce-scatter: every rank sends each chunk directly to its owner, which combines all
//! contributions in the order of the tree.
//!
//! The pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of collective
//! communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005). Each rank
//! sends (n-1)/n of the data, the minimum of any reduce-scatter, in n-1 independent messages for
//! each segment. Latency is therefore paid once if messages are buffered, and at most ceil(n/2)
//! times without buffering, because the owner combines in about log2 n slots of scratch.

use std::iter;

use comm_core::Step;

use super::ordered_fan_in::{self, FanIn, peers};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    p.slots(ordered_fan_in::slots(p.ranks))
}

pub(super) fn cost(p: &Params) -> Cost {
    ordered_fan_in::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).pipeline(1, (p.ranks - 1) * p.segments, true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new((0..p.segments).flat_map(move |segment| exchange(&p, segment)))
}

/// Sends one segment of every chunk to the chunk's owner.
pub(super) fn exchange(params: &Params, segment: usize) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let fan_in = FanIn::new(&p, p.rank, segment, p.own());
    let exchanges = peers(&p).flat_map(move |peer| {
        let give = Step::send(peer.rank, p.own(), p.block(peer.rank, segment));
        iter::once(give).chain(fan_in.recv_from(peer))
    });
    exchanges.chain(fan_in.finish())
}

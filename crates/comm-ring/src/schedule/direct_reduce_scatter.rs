//! Direct reduce-scatter: every rank sends each chunk straight to its owner, who combines all in the order of the tree.
//!
//! The pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", Int. J. High Perform. Comput. Appl. 19 (2005). Each rank sends (n-1)/n of the data, the least that any
//! reduce-scatter can send, in n-1 messages for each segment that do not wait for each other; so latency is paid once
//! where messages are buffered. Without any buffering it is paid at most ceil(n/2) times, because the owner combines in
//! about log2 n slots of scratch.

use std::iter;

use comm_core::{Place, Step};

use super::hearing::{self, Hearing, peers};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    p.slots(hearing::slots(p.ranks))
}

pub(super) fn cost(p: &Params) -> Cost {
    hearing::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).pipeline(1, (p.ranks - 1) * p.segments, true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new((0..p.segments).flat_map(move |segment| exchange(&p, segment)))
}

/// One segment of every chunk goes to the chunk's owner.
pub(super) fn exchange(params: &Params, segment: usize) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    let own = p.block(p.rank, segment);
    let given = if p.in_place { Place::Output } else { Place::Input };
    let copy = (!p.in_place).then_some(Step::copy(Place::Output, Place::Input, own));
    let hearing = Hearing::new(&p, p.rank, segment);
    let exchanges = peers(&p).flat_map(move |peer| {
        let give = Step::send(peer.rank, given, p.block(peer.rank, segment));
        iter::once(give).chain(hearing.hear(peer))
    });
    copy.into_iter().chain(exchanges).chain([Step::finish(Place::Output, own)])
}

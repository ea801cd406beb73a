//! One-shot all-reduce: every rank sends its data to all others at once, and combines all
//! contributions in the order of the tree.
//!
//! Latency is paid once for any number of ranks if messages are buffered, and floor(n/2) times
//! without buffering. Each rank sends and combines n-1 times the data, so this suits very little
//! data, above all if ranks outnumber processors: every rank has to be scheduled only once.

use comm_core::{Place, Step};

use super::ordered_fan_in::{self, FanIn, peers};
use super::{Cost, Pacing, Params, Steps};

pub(super) fn slots(p: &Params) -> usize {
    p.slots(ordered_fan_in::slots(p.ranks) + 1)
}

pub(super) fn cost(p: &Params) -> Cost {
    ordered_fan_in::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).pipeline(1, p.ranks - 1, true)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.ranks == 1 {
        return Box::new(std::iter::once(Step::finish(Place::Output, p.block(0, 0))));
    }
    let (fan_in, block) = (FanIn::new(&p, 0, 0, Place::Output), p.block(0, 0));
    // The output changes while this rank's contribution is being sent, so a copy is sent.
    let own = p.slot(ordered_fan_in::slots(p.ranks), 0);
    let exchange = peers(&p).flat_map(move |peer| {
        std::iter::once(Step::send(peer.rank, own, block)).chain(fan_in.recv_from(peer))
    });
    Box::new(std::iter::once(Step::copy(own, Place::Output, block)).chain(exchange).chain(fan_in.finish()))
}

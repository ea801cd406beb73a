//! Ring all-reduce: a reduce-scatter around the ring, then an all-gather around the ring.
//!
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
//! Parallel Distrib. Comput. 69 (2009). Each rank sends 2(n-1)/n of the data in 2(n-1) rounds,
//! which is the least that any all-reduce can send. Segments let a rank pass on the start of a
//! chunk while its end is still arriving.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = 2 * (p.ranks - 1) * p.segments;
    Cost { rounds: 2 * (p.ranks - 1), messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    pace.pipeline(p.ranks - 1, p.segments, true) + pace.pipeline(p.ranks - 1, p.segments, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.ranks == 1 {
        return Box::new(
            (0..p.segments).map(move |segment| Step::finish(Place::Output, p.block(0, segment))),
        );
    }
    Box::new((0..2 * (p.ranks - 1)).flat_map(move |round| exchange(&p, round)))
}

/// Performs one round. After n-1 rounds, the sum of the chunk after the rank's own is complete.
fn exchange(params: &Params, round: usize) -> impl Iterator<Item = Step> + use<> {
    let p = *params;
    // The all-gather goes around the ring like the reduce-scatter, but with complete chunks.
    let reducing = p.ranks - 1;
    let (give, take) = (p.behind(round), p.behind(round + 1));
    (0..p.segments).flat_map(move |segment| {
        let taken = p.block(take, segment);
        let receive = if round < reducing {
            Step::recv_reduce(p.prev(), Place::Output, Place::Output, taken)
        } else {
            Step::recv(p.prev(), Place::Output, taken)
        };
        let finish = (round + 1 == reducing).then_some(Step::finish(Place::Output, taken));
        let send = Step::send(p.next(), Place::Output, p.block(give, segment));
        [Some(send), Some(receive), finish].into_iter().flatten()
    })
}

//! Pairwise all-to-all: in round k, each rank sends to the rank k ahead and receives from the rank
//! k behind.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). n-1 rounds; every chunk travels once and
//! directly, the minimum. No rank receives from two ranks in the same round.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    // No round waits for the one before, as no chunk travels twice.
    Cost { rounds: usize::from(p.ranks > 1), messages: p.ranks - 1, blocks: p.ranks - 1 }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    pacing.slowest(p).exchange(p.ranks - 1)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let between = move |from: usize, to: usize| Blocks::one(from * p.ranks + to);
    let rounds = (1..p.ranks).flat_map(move |distance| {
        let (to, from) = (p.ahead(distance), p.behind(distance));
        [
            Step::send(to, Place::Input, between(p.rank, to)),
            Step::recv(from, Place::Output, between(from, p.rank)),
        ]
    });
    let own = Step::copy(Place::Output, Place::Input, between(p.rank, p.rank));
    Box::new(rounds.chain([own]))
}

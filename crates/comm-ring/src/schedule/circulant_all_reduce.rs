//! Circulant all-reduce: the circulant reduce-scatter, then its messages in the reverse order and
//! direction, with complete sums.
//!
//! Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", arXiv:2410.14234
//! (2024). 2 ceil(log2 n) rounds for any n, in which each rank sends 2(n-1)/n of the data, the
//! minimum of any all-reduce. Halving and doubling needs two more rounds and, on some ranks, more
//! data if n is not a power of two.

use comm_core::{Place, Step};

use super::circulant_reduce_scatter::{self as reduce_scatter, Round, exchange, rounds};
use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    let rounds = rounds(p.ranks).count();
    // No rank sends such a run in two messages both times.
    let messages = 2 * rounds + reduce_scatter::split(p.ranks);
    Cost { rounds: rounds + reduce_scatter::chain(p.ranks), messages, blocks: 2 * (p.ranks - 1) }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    reduce_scatter::time_of(p, pace, true) + reduce_scatter::time_of(p, pace, false)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let gathers = rounds(p.ranks).rev().flat_map(move |Round { distance, count }| {
        let (to, from) = (p.behind(distance), p.ahead(distance));
        exchange(
            p,
            (0..count, move |_, run| Step::send(to, Place::Output, run)),
            (distance..distance + count, move |_, run| Step::recv(from, Place::Output, run)),
        )
    });
    Box::new(reduce_scatter::steps(&p).chain(gathers))
}

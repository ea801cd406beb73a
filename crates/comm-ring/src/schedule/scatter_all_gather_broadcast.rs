//! Broadcast as a scatter and an all-gather.
//!
//! Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective communication
//! library (InterCom)", Scalable High Performance Computing Conference (1994). A binomial tree
//! scatters the chunks in ceil(log2 n) rounds, and a ring gathers them in n-1. Every rank receives
//! the data once; the root sends 2(n-1)/n of it, every other rank less.
//!
//! Chunk i goes to the i-th rank counted from the root. In the ring, a rank does not receive the
//! chunks that it has forwarded in the tree.

use comm_core::{Place, Step};

use super::binomial_broadcast::Position;
use super::{Cost, Pacing, Params, Steps};

pub(super) const fn slots(_: &Params) -> usize {
    0
}

pub(super) fn cost(p: &Params) -> Cost {
    // The root is the busiest: it sends every chunk but its own down the tree, and then each chunk
    // but one on the ring.
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    Cost { rounds: p.ranks - 1, messages: levels + p.ranks - 1, blocks: 2 * (p.ranks - 1) }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    let levels = p.ranks.next_power_of_two().ilog2() as usize;
    // A chunk enters the ring at the first rank that received it in the tree; the root serves the
    // next rank last.
    let served = levels.saturating_sub(1) as f64 * pace.overhead;
    served + (p.ranks - 1) as f64 * pace.hop(2)
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    let position = Position::new(&p);
    let receive =
        position.parent().map(|from| Step::recv(from, Place::Output, position.subtree(position.number())));
    // The largest subtree has the longest path, so it is served first.
    let sends = position.branches().rev().map(|(to, chunks)| Step::send(to, Place::Output, chunks));
    let scatter: Vec<Step> = receive.into_iter().chain(sends).collect();
    let number = position.number();
    let after = (number + 1) % p.ranks;
    let (ours, theirs) = (position.subtree(number), position.subtree(after));
    let ring = (0..p.ranks - 1).flat_map(move |round| {
        let behind = |distance: usize| (number + p.ranks - distance) % p.ranks;
        let (give, take) = (behind(round), behind(round + 1));
        let send = (!theirs.contains(give)).then(|| Step::send(p.next(), Place::Output, p.block(give, 0)));
        let recv = (!ours.contains(take)).then(|| Step::recv(p.prev(), Place::Output, p.block(take, 0)));
        send.into_iter().chain(recv)
    });
    Box::new(scatter.into_iter().chain(ring))
}

//! Recursive doubling scan: the run of ranks whose sum a rank holds doubles in every round.
//!
//! Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29 (1986). ceil(log2 n)
//! rounds for any n; a rank sends all data in every round, so this suits small data. In the round
//! of distance d, a rank sends its sum to the rank d ahead, if there is one, and adds the sum of
//! the rank d behind.
//!
//! A sum is received into scratch, because the rank's own sum may still be in transmission to
//! another rank.

use comm_core::{Blocks, Place, Step};

use super::{Cost, Pacing, Params, Steps, distances, doubling_rounds};

pub(super) const ALL: Blocks = Blocks::one(0);

/// Returns the number of rounds in which a rank receives.
pub(super) const fn receives(p: &Params) -> usize {
    (usize::BITS - p.rank.leading_zeros()) as usize
}

pub(super) fn slots(p: &Params) -> usize {
    // Two, so that a sum can arrive while the one before is still being combined.
    receives(p).min(2)
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = distances(p.ranks).count();
    Cost { rounds: doubling_rounds(p.ranks), messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let pace = pacing.slowest(p);
    // A rank passes on all data in every round, though not every round waits for the one before.
    let passed = distances(p.ranks).count() as f64 * (pace.block + pace.reduce);
    doubling_rounds(p.ranks) as f64 * pace.hop(0) + passed
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new(distances(p.ranks).enumerate().flat_map(move |(round, distance)| {
        let arrived = Place::Scratch { slot: round % 2 };
        let to = (p.rank + distance < p.ranks).then_some(p.rank + distance);
        let send = to.map(|to| Step::send(to, Place::Output, ALL));
        let add = p
            .rank
            .checked_sub(distance)
            .map(|from| [Step::recv(from, arrived, ALL), Step::reduce(Place::Output, arrived, ALL)]);
        send.into_iter().chain(add.into_iter().flatten())
    }))
}

//! Recursive doubling exclusive scan: the scan, with a second sum that excludes the rank's own
//! contribution.
//!
//! Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29 (1986), for two sums
//! as MPICH does. ceil(log2 n) rounds for any n; a rank sends all data in every round, so this
//! suits small data.
//!
//! The sum without the rank's own contribution is computed in the output, the sum that is passed on
//! in scratch.

use comm_core::{Place, Step};

use super::recursive_doubling_scan::{ALL, receives};
use super::{Cost, Pacing, Params, Steps, distances, recursive_doubling_scan};

/// The sum that is passed on.
const SUM: Place = Place::Scratch { slot: 0 };

pub(super) fn slots(p: &Params) -> usize {
    // One for the sum that is passed on and two for sums that arrive, so that a sum can arrive
    // while the one before is still being combined. The first sum to arrive goes straight to the
    // output.
    receives(p).min(3)
}

pub(super) fn cost(p: &Params) -> Cost {
    recursive_doubling_scan::cost(p)
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    let (pace, rounds) = (pacing.slowest(p), distances(p.ranks).count());
    // Both sums are combined in every round, except one in the first round and the other in the
    // last.
    let saved = if rounds == 0 { 0.0 } else { pace.reduce };
    recursive_doubling_scan::time(p, pacing) + (rounds as f64 - 1.0).max(0.0) * pace.reduce - saved
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    Box::new(distances(p.ranks).enumerate().flat_map(move |(round, distance)| {
        let sum = if round == 0 || p.rank == 0 { Place::Input } else { SUM };
        let to = (p.rank + distance < p.ranks).then_some(p.rank + distance);
        let send = to.map(|to| Step::send(to, sum, ALL));
        let sends_later = p.rank + 2 * distance < p.ranks;
        let add = p.rank.checked_sub(distance).map(|from| add(from, round, sends_later));
        send.into_iter().chain(add.into_iter().flatten().flatten())
    }))
}

/// Receives a sum and adds it to both sums; to the one that is passed on only if it will be sent.
fn add(from: usize, round: usize, sends_later: bool) -> [Option<Step>; 3] {
    if round == 0 {
        let start = [Step::copy(SUM, Place::Input, ALL), Step::reduce(SUM, Place::Output, ALL)];
        let [copy, reduce] = start.map(|step| sends_later.then_some(step));
        return [Some(Step::recv(from, Place::Output, ALL)), copy, reduce];
    }
    let arrived = Place::Scratch { slot: 1 + (round - 1) % 2 };
    let grow = sends_later.then_some(Step::reduce(SUM, arrived, ALL));
    [Some(Step::recv(from, arrived, ALL)), grow, Some(Step::reduce(Place::Output, arrived, ALL))]
}

//! Circulant broadcast: in every round, each rank sends a segment over one distance and receives
//! another over the same distance.
//!
//! Träff, "Optimal Broadcast Schedules in Logarithmic Time with Applications to Broadcast,
//! All-Broadcast, Reduction and All-Reduction", arXiv:2407.18004 (2024). m segments take
//! m-1+ceil(log2 n) rounds for any n, the minimum: the root sends a new segment in each round, and
//! the last one needs ceil(log2 n) rounds to reach all ranks. The distances are n/2, n/4 and so on,
//! rounded up. They take turns, the shortest first.
//!
//! One round of each distance is a phase. In each phase a rank receives as many segments as there
//! are rounds, in the order of the phase before, and it computes this order without those of other
//! ranks. No rank receives a segment twice.

use comm_core::{Place, Step};

use super::{Cost, Pacing, Params, Steps, halvings};

/// The largest part of a round for which a port is idle, as in simulations.
const IDLE_MAX: f64 = 0.15;

pub(super) const fn slots(_: &Params) -> usize {
    0
}

/// The distances over which ranks send, in the order of the rounds, and then the number of ranks.
struct Distances(Vec<usize>);

impl Distances {
    fn new(ranks: usize) -> Self {
        Self(halvings(ranks).rev().collect())
    }

    /// Returns the number of rounds of a phase.
    fn rounds(&self) -> usize {
        self.0.len() - 1
    }

    /// Returns the rounds whose distances lead from the root to the rank `number` places ahead of
    /// it, the longest distance first, and each as long as possible. The rank's first segment is
    /// the one that the root sends in the last of these rounds.
    fn path(&self, number: usize) -> impl Iterator<Item = usize> {
        let mut left = number;
        (0..self.rounds()).rev().filter(move |&round| {
            let is_taken = self.0[round] <= left;
            left -= if is_taken { self.0[round] } else { 0 };
            is_taken
        })
    }

    /// Returns the segments that the rank `number` places ahead of the root receives in the rounds
    /// of a phase. A segment that the root sends in round `k` of the phase before is `k`, and one
    /// that it sends in round `k` of this phase is `k` plus the number of rounds.
    fn segments(&self, number: usize) -> Vec<usize> {
        let rounds = self.rounds();
        let first = self.path(number).last().unwrap_or(rounds);
        let mut search = Search {
            distances: &self.0,
            // A whole circle ahead, so that all ranks are behind it.
            number: number + self.0[rounds],
            is_left: (0..=rounds).map(|segment| segment != first).collect(),
            last: usize::MAX,
            found: Vec::with_capacity(rounds),
        };
        search.extend(0, rounds);
        // The root itself, a circle ahead, stands for the first segment of the rank.
        let found = search.found.into_iter();
        found.map(|segment| if segment == rounds { first + rounds } else { segment }).collect()
    }
}

/// The search for the segments of a rank. For each round, it finds the nearest rank that is not
/// ahead of the sender of this round, but ahead of the one of the next round, behind those found
/// before, and whose first segment is not taken. This segment is received in the round.
struct Search<'a> {
    distances: &'a [usize],
    number: usize,
    /// The segments that are not taken.
    is_left: Vec<bool>,
    /// The number of the rank that was found last. The next one is behind it.
    last: usize,
    /// The segments of the first rounds.
    found: Vec<usize>,
}

impl Search<'_> {
    /// Follows the paths that continue at `from` with the distances of rounds up to `longest`.
    fn extend(&mut self, from: usize, longest: usize) {
        for segment in (0..=longest).rev() {
            let Some((sender, _)) = self.senders() else { return };
            let to = from + self.distances[segment];
            if !self.is_left[segment] || to > sender || to >= self.last {
                continue;
            }
            if self.senders().is_some_and(|(_, next)| to <= next) {
                self.extend(to, segment);
            }
            // Longer paths may have been found for this round and for later ones.
            match self.senders() {
                Some((_, next)) if from <= next => self.take(to, segment),
                _ => return,
            }
        }
    }

    /// Returns the ranks that send to this one in the first round without a segment and in the next
    /// round.
    fn senders(&self) -> Option<(usize, usize)> {
        let behind = |round: usize| self.distances.get(round).map(|distance| self.number - distance);
        let round = self.found.len();
        behind(round).zip(behind(round + 1))
    }

    fn take(&mut self, rank: usize, segment: usize) {
        self.last = rank;
        self.is_left[segment] = false;
        self.found.push(segment);
    }
}

/// Returns the number of distances of the longest path.
fn longest_path(ranks: usize) -> usize {
    // The rank nearest to the root of those with the longest path so far. A further distance makes
    // the path longer if the sum is not as far as the next distance.
    let mut nearest = 0;
    let distances = halvings(ranks).rev().zip(halvings(ranks).rev().skip(1));
    let lengthens = |(distance, next): &(usize, usize)| {
        let is_longer = nearest + distance < *next;
        nearest += if is_longer { *distance } else { 0 };
        is_longer
    };
    distances.filter(lengthens).count()
}

pub(super) fn cost(p: &Params) -> Cost {
    let messages = if p.ranks == 1 { 0 } else { p.segments - 1 + halvings(p.ranks).len() - 1 };
    Cost { rounds: longest_path(p.ranks), messages, blocks: messages }
}

pub(super) fn time(p: &Params, pacing: &Pacing) -> f64 {
    if p.ranks == 1 {
        return 0.0;
    }
    let pace = pacing.slowest(p);
    let path = longest_path(p.ranks);
    // The root only sends, so the rounds outside of the path follow each other without a receive.
    let others = (halvings(p.ranks).len() - 1 - path) as f64 * pace.block.max(pace.overhead);
    // In every further round, ranks wait for each other all around the circle.
    let idle = (pace.hop(0) / 2.0).min(pace.block * IDLE_MAX);
    let further = (p.segments - 1) as f64 * (pace.block.max(2.0 * pace.overhead) + idle);
    path as f64 * pace.hop(1) + others + further
}

/// The segments that a rank sends and receives in one round of a phase, if any.
struct Exchange {
    distance: usize,
    send: Option<usize>,
    recv: Option<usize>,
}

/// Returns the exchanges of a rank in the rounds of a phase. Nobody sends to the root.
fn exchanges(p: &Params) -> Vec<Exchange> {
    let distances = Distances::new(p.ranks);
    let number = p.behind(p.root);
    let receives = distances.segments(number);
    let exchange = |(round, recv): (usize, usize)| {
        let distance = distances.0[round];
        let to = p.wrap(number + distance);
        let send = (to != 0).then(|| distances.segments(to)[round]);
        Exchange { distance, send, recv: (number != 0).then_some(recv) }
    };
    receives.into_iter().enumerate().map(exchange).collect()
}

pub(super) fn steps(params: &Params) -> Steps {
    let p = *params;
    if p.ranks == 1 {
        return Box::new(std::iter::empty());
    }
    let phase = exchanges(&p);
    let rounds = p.segments - 1 + phase.len();
    // The first phase is shorter, so that the last one is complete.
    let skipped = rounds.next_multiple_of(phase.len()) - rounds;
    // Before the first segment there is nothing to send, and nothing but the last one after it.
    let block = move |segment: usize| Some(p.block(0, segment.checked_sub(skipped)?.min(p.segments - 1)));
    Box::new((skipped..skipped + rounds).flat_map(move |at| {
        let Exchange { distance, send, recv } = phase[at % phase.len()];
        let block = |segment: usize| block((segment + at - at % phase.len()).checked_sub(phase.len())?);
        let send = send.and_then(block).map(|block| Step::send(p.ahead(distance), Place::Output, block));
        let recv = recv.and_then(block).map(|block| Step::recv(p.behind(distance), Place::Output, block));
        send.into_iter().chain(recv)
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Asserts that in every phase, each rank receives the segments of the phase before and its
    /// first one, each once, and sends only segments that it has.
    #[track_caller]
    fn assert_complete(ranks: usize) {
        let distances = Distances::new(ranks);
        let rounds = distances.rounds();
        let all: Vec<Vec<usize>> = (0..ranks).map(|number| distances.segments(number)).collect();
        for (number, segments) in all.iter().enumerate().skip(1) {
            let first = distances.path(number).last().unwrap();
            let expected = (0..rounds).filter(|&segment| segment != first).chain([first + rounds]);
            let received: BTreeSet<usize> = segments.iter().copied().collect();
            assert_eq!(received, expected.collect(), "{number} of {ranks}");
            for round in 0..rounds {
                let to = (number + distances.0[round]) % ranks;
                let sent = all[to][round];
                let is_received = sent == first || segments[..round].contains(&sent);
                assert!(is_received || to == 0, "{number} of {ranks} sends {sent} in round {round}");
            }
        }
        for round in 0..rounds {
            assert_eq!(all[distances.0[round] % ranks][round], round + rounds, "the root of {ranks}");
        }
    }

    #[test]
    fn the_longest_path_of_all_ranks_is_found() {
        for ranks in 1..2000 {
            let distances = Distances::new(ranks);
            let paths = (0..ranks).map(|number| distances.path(number).count());
            assert_eq!(longest_path(ranks), paths.max().unwrap(), "{ranks} ranks");
        }
    }

    #[test]
    fn every_rank_receives_each_segment_once_and_sends_only_those_that_it_has() {
        (2..300).chain([511, 512, 513, 1000, 4097, 10_000]).for_each(assert_complete);
    }
}

//! The performance bars of this library, and checks whether it meets them.

use std::ops::RangeInclusive;

use comm_cli::__private::statistics::geometric_mean;

use super::bounds::{FLAG, LIMIT, TCP_LIMIT};
use super::collective::Collective;
use super::library::BEST_MPI;
use super::ratio::{Cell, Comparison, Ratio};
use super::record::Case;

/// A limit of the ratio of our time to a peer's.
#[derive(Debug)]
pub(crate) struct Bar {
    /// The names of this library in the report; the first one with measurements counts.
    ours: &'static [&'static str],
    pub(crate) peer: &'static str,
    ranks: &'static [usize],
    pub(crate) collectives: &'static [Collective],
    /// The sizes in bytes.
    pub(crate) sizes: RangeInclusive<usize>,
    pub(crate) limit: Threshold,
}

/// The statistic of a bar, and its largest value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Threshold {
    /// The geometric mean over all sizes of a collective.
    Mean(f64),
    /// The ratio of each size.
    Each(f64),
    /// The ratio of each size at which this library is not at the limit of the machine, as
    /// [`AT_LIMIT`] says.
    EachBeyondLimit(f64),
}

/// Up to this multiple of the least time that the machine allows, a call is at the limit, if no
/// peer is below it.
pub(crate) const AT_LIMIT: f64 = 1.3;

impl Threshold {
    pub(crate) const fn value(self) -> f64 {
        match self {
            Self::Mean(value) | Self::Each(value) | Self::EachBeyondLimit(value) => value,
        }
    }
}

const SHM: &[&str] = &["comm-shm", "comm-auto"];
const ALLOC: &[&str] = &["comm-shm-alloc"];
const TCP: &[&str] = &["comm-tcp"];
const ANY_RANKS: &[usize] = &[];
const ALL_REDUCE: &[Collective] = &[Collective::AllReduce];
const SMALLEST: &[Collective] = &[Collective::AllReduce, Collective::Barrier];
const ALL: &[Collective] = &Collective::ALL;
const ANY_SIZE: RangeInclusive<usize> = 0..=usize::MAX;
const UP_TO_4: RangeInclusive<usize> = 0..=4;
const UP_TO_MIB: RangeInclusive<usize> = 0..=1 << 20;
const UP_TO_64_KIB: RangeInclusive<usize> = 0..=64 << 10;
const ABOVE_64_KIB: RangeInclusive<usize> = (64 << 10) + 1..=usize::MAX;
const ABOVE_MIB: RangeInclusive<usize> = (1 << 20) + 1..=usize::MAX;
const FROM_4_MIB: RangeInclusive<usize> = 4 << 20..=usize::MAX;
const FROM_64_MIB: RangeInclusive<usize> = 64 << 20..=usize::MAX;

macro_rules! bar {
    ($ours:ident, $peer:expr, $ranks:expr, $collectives:ident, $sizes:ident, $limit:expr) => {
        Bar {
            ours: $ours,
            peer: $peer,
            ranks: $ranks,
            collectives: $collectives,
            sizes: $sizes,
            limit: $limit,
        }
    };
}

pub(crate) const BARS: &[Bar] = {
    use Threshold::{Each, EachBeyondLimit, Mean};
    &[
        bar!(ALLOC, LIMIT, ANY_RANKS, ALL_REDUCE, FROM_4_MIB, Each(1.25)),
        bar!(SHM, LIMIT, ANY_RANKS, ALL_REDUCE, FROM_4_MIB, Each(1.6)),
        bar!(SHM, FLAG, &[2], SMALLEST, UP_TO_4, Each(1.3)),
        bar!(SHM, BEST_MPI, &[2], ALL_REDUCE, ANY_SIZE, Mean(0.55)),
        bar!(SHM, BEST_MPI, &[4, 8], ALL_REDUCE, ANY_SIZE, Mean(0.4)),
        bar!(SHM, BEST_MPI, ANY_RANKS, ALL_REDUCE, FROM_64_MIB, Each(0.35)),
        bar!(SHM, BEST_MPI, ANY_RANKS, ALL, ANY_SIZE, EachBeyondLimit(0.9)),
        bar!(SHM, "openmpi-tuned", ANY_RANKS, ALL_REDUCE, ANY_SIZE, Each(0.9)),
        bar!(SHM, "mpich-tuned", ANY_RANKS, ALL_REDUCE, ANY_SIZE, Each(0.9)),
        bar!(SHM, "gloo", ANY_RANKS, ALL, UP_TO_MIB, Each(0.2)),
        bar!(SHM, "gloo", ANY_RANKS, ALL, ABOVE_MIB, Each(0.8)),
        bar!(TCP, TCP_LIMIT, &[2], ALL_REDUCE, FROM_64_MIB, Each(1.4)),
        bar!(TCP, "openmpi-tcp", ANY_RANKS, ALL, ANY_SIZE, Each(0.7)),
        bar!(TCP, "gloo", ANY_RANKS, ALL, UP_TO_MIB, Each(0.2)),
        bar!(TCP, "gloo", ANY_RANKS, ALL, ABOVE_MIB, Each(0.8)),
        bar!(SHM, "ferrotorch", ANY_RANKS, ALL_REDUCE, UP_TO_64_KIB, Each(0.1)),
        bar!(SHM, "ferrotorch", ANY_RANKS, ALL_REDUCE, ABOVE_64_KIB, Each(0.2)),
        bar!(TCP, "ferrotorch", ANY_RANKS, ALL_REDUCE, UP_TO_64_KIB, Each(0.1)),
        bar!(TCP, "ferrotorch", ANY_RANKS, ALL_REDUCE, ABOVE_64_KIB, Each(0.5)),
    ]
};

/// The result of a bar for a number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// The largest ratio.
    pub(crate) value: f64,
    /// The collective with this ratio.
    pub(crate) collective: Collective,
    /// The size with this ratio; `None` for a mean.
    pub(crate) bytes: Option<usize>,
    /// The number of rounds above the limit.
    pub(crate) above: usize,
    pub(crate) rounds: usize,
    pub(crate) met: bool,
    /// The number of ratios that miss the bar, and of all ratios.
    pub(crate) misses: (usize, usize),
}

/// A ratio to which a bar applies.
struct CheckedRatio {
    collective: Collective,
    bytes: Option<usize>,
    ratio: Ratio,
    /// The median, or the mean of the medians.
    value: f64,
}

impl Bar {
    pub(crate) fn applies_to(&self, ranks: usize) -> bool {
        self.ranks.is_empty() || self.ranks.contains(&ranks)
    }

    /// Returns the library to which the bar applies.
    pub(crate) fn ours(&self, comparison: &Comparison) -> &'static str {
        let libraries = comparison.libraries();
        let measured = self.ours.iter().find(|name| libraries.iter().any(|library| library == *name));
        measured.or(self.ours.first()).copied().unwrap_or_default()
    }

    /// Returns the result for a number of ranks. `None` if the bar does not apply or there are no
    /// measurements.
    pub(crate) fn verdict(&self, comparison: &Comparison, ranks: usize) -> Option<Verdict> {
        if !self.applies_to(ranks) {
            return None;
        }
        let held: Vec<CheckedRatio> = self
            .collectives
            .iter()
            .flat_map(|collective| self.held(comparison, *collective, ranks))
            .collect();
        let limit = self.limit.value();
        let misses = |held: &&CheckedRatio| held.value > limit && held.ratio.misses(limit);
        let missed = held.iter().filter(misses).count();
        let worst = |candidates: &mut dyn Iterator<Item = &CheckedRatio>| -> Option<Verdict> {
            let worst = candidates.max_by(|a, b| a.value.total_cmp(&b.value))?;
            let CheckedRatio { collective, bytes, value, ref ratio } = *worst;
            let (above, rounds) = (ratio.above(limit), ratio.rounds.len());
            Some(Verdict {
                value,
                collective,
                bytes,
                above,
                rounds,
                met: missed == 0,
                misses: (missed, held.len()),
            })
        };
        // Ratios that miss the bar come first: others may be above it in too few rounds.
        worst(&mut held.iter().filter(misses)).or_else(|| worst(&mut held.iter()))
    }

    /// Whether the bar does not apply to a size, because this library is at the limit there. What a
    /// peer is below, such as a limit of memory that caches make up for, is none.
    fn excepts(&self, cell: &Cell, ours: &str) -> bool {
        let by_limit = |library| cell.ratio(library, LIMIT).map(|ratio| ratio.median());
        matches!(self.limit, Threshold::EachBeyondLimit(_))
            && by_limit(ours).is_some_and(|ratio| ratio <= AT_LIMIT)
            && by_limit(self.peer).is_some_and(|ratio| ratio >= 1.0)
    }

    fn held(&self, comparison: &Comparison, collective: Collective, ranks: usize) -> Vec<CheckedRatio> {
        let ours = self.ours(comparison);
        let cells = comparison.cells(Case { collective, ranks, rotates: false });
        let ratios: Vec<(usize, Ratio)> = cells
            .filter(|(bytes, cell)| self.sizes.contains(bytes) && !self.excepts(cell, ours))
            .filter_map(|(bytes, cell)| Some((bytes, cell.ratio(ours, self.peer)?)))
            .collect();
        match self.limit {
            Threshold::Each(_) | Threshold::EachBeyondLimit(_) => ratios
                .into_iter()
                .map(|(bytes, ratio)| CheckedRatio {
                    collective,
                    bytes: Some(bytes),
                    value: ratio.median(),
                    ratio,
                })
                .collect(),
            Threshold::Mean(_) => mean(&ratios)
                .map(|(value, ratio)| CheckedRatio { collective, bytes: None, value, ratio })
                .into_iter()
                .collect(),
        }
    }
}

/// Returns the geometric mean of the medians, and the mean of each round.
fn mean(ratios: &[(usize, Ratio)]) -> Option<(f64, Ratio)> {
    let medians: Vec<f64> = ratios.iter().map(|(_, ratio)| ratio.median()).collect();
    let all = || ratios.iter().flat_map(|(_, ratio)| &ratio.rounds);
    let mut rounds: Vec<u32> = all().map(|(round, _)| *round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let of_round = |round: u32| {
        let numbers: Vec<f64> = all().filter(|(at, _)| *at == round).map(|(_, ratio)| *ratio).collect();
        Some((round, geometric_mean(&numbers)?))
    };
    Some((geometric_mean(&medians)?, Ratio { rounds: rounds.into_iter().filter_map(of_round).collect() }))
}

/// Returns the geometric mean of the medians of a pair over all sizes of a case.
pub(crate) fn mean_of(comparison: &Comparison, case: Case, ours: &str, peer: &str) -> Option<f64> {
    let ratios = comparison.cells(case).filter_map(|(_, cell)| cell.ratio(ours, peer));
    geometric_mean(&ratios.map(|ratio| ratio.median()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Limit, Record, RoundLimit, Time};
    use super::*;

    /// All-reduce of two ranks: for each size, our times in the rounds; the peer takes 1 always.
    fn comparison(sizes: &[(usize, &[f64])]) -> Comparison {
        let case = Case { collective: Collective::AllReduce, ranks: 2, rotates: false };
        let time = |round, library: &str, bytes, us| {
            Record::Time(Time { run: 1, round, library: library.into(), case, bytes, us })
        };
        let mut records = Vec::new();
        for (bytes, times) in sizes {
            for (round, us) in (1..).zip(times.iter()) {
                records.push(time(round, "comm-shm", *bytes, *us));
                records.push(time(round, "openmpi", *bytes, 1.0));
            }
        }
        Comparison::of(&records)
    }

    fn bar(limit: Threshold) -> Bar {
        bar!(SHM, BEST_MPI, ANY_RANKS, ALL_REDUCE, ANY_SIZE, limit)
    }

    #[test]
    fn a_limit_for_each_size_applies_to_every_size() {
        let comparison = comparison(&[(4, &[0.5, 0.5, 0.5]), (16, &[1.3, 1.2, 0.4]), (64, &[5.0, 1.0, 1.0])]);
        let verdict = bar(Threshold::Each(1.1)).verdict(&comparison, 2).unwrap();
        assert!(!verdict.met);
        assert_eq!((verdict.value, verdict.bytes, verdict.misses), (1.2, Some(16), (1, 3)));
        assert_eq!((verdict.above, verdict.rounds), (2, 3));
        let verdict = bar(Threshold::Each(1.2)).verdict(&comparison, 2).unwrap();
        assert!(verdict.met, "{verdict:?}");
    }

    #[test]
    fn a_size_at_the_limit_of_the_machine_may_be_as_slow_as_a_peer() {
        let case = Case { collective: Collective::AllReduce, ranks: 2, rotates: false };
        let time = |library: &str, bytes, us| {
            Record::Time(Time { run: 1, round: 1, library: library.into(), case, bytes, us })
        };
        let limit = |exchange| {
            let (limit, detail, unit) = ("exchange in memory".into(), "4 B".into(), "us".into());
            let limit = Limit { run: 1, limit, detail, value: exchange, unit };
            Record::RoundLimit(RoundLimit { round: 1, case, limit })
        };
        let records = |exchange| {
            [4, 8, 1024]
                .iter()
                .flat_map(|bytes| [time("comm-shm", *bytes, 1.0), time("openmpi", *bytes, 1.0)])
                .chain([limit(exchange)])
                .collect::<Vec<_>>()
        };
        let misses = |exchange, bar: Threshold| {
            self::bar(bar).verdict(&Comparison::of(&records(exchange)), 2).unwrap().misses
        };
        assert_eq!(misses(0.8, Threshold::EachBeyondLimit(0.9)), (1, 1), "1 KiB has no limit");
        assert_eq!(misses(0.7, Threshold::EachBeyondLimit(0.9)), (3, 3));
        assert_eq!(misses(1.1, Threshold::EachBeyondLimit(0.9)), (3, 3), "the peer is below the limit");
        assert_eq!(misses(0.8, Threshold::Each(0.9)), (3, 3));
    }

    #[test]
    fn a_mean_compensates_a_slow_size() {
        let comparison = comparison(&[(4, &[0.25, 0.25, 0.25]), (16, &[1.0, 1.0, 1.0])]);
        let verdict = bar(Threshold::Mean(0.5)).verdict(&comparison, 2).unwrap();
        assert!(verdict.met && (verdict.value - 0.5).abs() < 1e-12, "{verdict:?}");
        let verdict = bar(Threshold::Mean(0.49)).verdict(&comparison, 2).unwrap();
        assert!(!verdict.met && verdict.above == 3, "{verdict:?}");
    }

    #[test]
    fn a_mean_is_missed_only_in_most_rounds() {
        // The medians are 1, but no round has two ratios of 1.
        let comparison = comparison(&[(4, &[1.0, 0.1, 9.0]), (16, &[0.1, 1.0, 9.0])]);
        assert!(bar(Threshold::Mean(0.9)).verdict(&comparison, 2).unwrap().met);
    }

    #[test]
    fn a_bar_that_does_not_apply_or_was_not_measured_has_no_verdict() {
        let comparison = comparison(&[(4, &[0.5])]);
        let of = |ranks| bar!(SHM, BEST_MPI, ranks, ALL_REDUCE, ANY_SIZE, Threshold::Each(1.0));
        assert!(of(&[2]).verdict(&comparison, 2).is_some());
        assert_eq!(of(&[4, 8]).verdict(&comparison, 2), None);
        assert_eq!(of(&[2]).verdict(&comparison, 4), None);
        let bar = bar!(TCP, "openmpi-tcp", ANY_RANKS, ALL, ANY_SIZE, Threshold::Each(1.0));
        assert_eq!(bar.verdict(&comparison, 2), None);
        let large = bar!(SHM, BEST_MPI, ANY_RANKS, ALL_REDUCE, FROM_64_MIB, Threshold::Each(1.0));
        assert_eq!(large.verdict(&comparison, 2), None);
    }
}

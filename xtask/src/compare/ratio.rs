//! Ratios of times of the same round.

use std::collections::{BTreeMap, BTreeSet};

use comm_cli::__private::statistics::median;

use super::bounds::{Bounds, FLAG, LIMIT, TCP_LIMIT};
use super::library::{BEST_MPI, MPIS, is_fair, is_ours, position};
use super::record::{Case, Record, RoundLimit};

/// A run and a round of it.
pub(super) type When = (u64, u32);

/// All times by case and size.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    cells: BTreeMap<(Case, usize), Cell>,
}

/// The times of one case and size.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    /// The times in microseconds by library.
    times: BTreeMap<String, BTreeMap<When, f64>>,
}

/// Our time divided by a peer's time, for each round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ratio {
    /// Pairs of round and ratio.
    pub(crate) rounds: Vec<(u32, f64)>,
}

impl Ratio {
    pub(crate) fn median(&self) -> f64 {
        median(self.rounds.iter().map(|(_, ratio)| *ratio).collect())
    }

    /// Returns the number of rounds above a limit.
    pub(crate) fn above(&self, limit: f64) -> usize {
        self.rounds.iter().filter(|(_, ratio)| *ratio > limit).count()
    }

    /// Returns whether the median and most rounds are above a limit.
    pub(crate) fn misses(&self, limit: f64) -> bool {
        self.median() > limit && 2 * self.above(limit) > self.rounds.len()
    }
}

impl Comparison {
    pub(crate) fn of(records: &[Record]) -> Self {
        let mut comparison = Self::default();
        for record in records {
            let Record::Time(time) = record else { continue };
            let cell = comparison.cells.entry((time.case, time.bytes)).or_default();
            // A repeated measurement replaces the earlier one.
            cell.times.entry(time.library.clone()).or_default().insert((time.run, time.round), time.us);
        }
        let bounds = AllBounds::of(records);
        for ((case, bytes), cell) in &mut comparison.cells {
            cell.add_best_mpi();
            cell.add_limits(&bounds, *case, *bytes);
        }
        comparison
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns every case, in the order of the report.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let cases: BTreeSet<Case> = self.cells.keys().map(|(case, _)| *case).collect();
        cases.into_iter().collect()
    }

    /// Returns the cells of a case with their sizes.
    pub(crate) fn cells(&self, case: Case) -> impl Iterator<Item = (usize, &Cell)> {
        let range = (case, 0)..=(case, usize::MAX);
        self.cells.range(range).map(|((_, bytes), cell)| (*bytes, cell))
    }

    /// Returns the libraries with measurements, in the order of the report.
    pub(crate) fn libraries(&self) -> Vec<String> {
        let names = self.cells.values().flat_map(|cell| cell.times.keys());
        let mut names: Vec<String> = names.cloned().collect::<BTreeSet<_>>().into_iter().collect();
        names.sort_by_cached_key(|name| position(name));
        names
    }

    /// Returns the pairs of this library and a peer that are comparable and were measured together.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let (ours, peers): (Vec<String>, Vec<String>) =
            self.libraries().into_iter().partition(|library| is_ours(library));
        let pairs = ours.iter().flat_map(|ours| peers.iter().map(move |peer| (ours.clone(), peer.clone())));
        pairs.filter(|(ours, peer)| is_fair(ours, peer) && self.share_a_round(ours, peer)).collect()
    }

    fn share_a_round(&self, ours: &str, peer: &str) -> bool {
        self.cells.values().any(|cell| cell.ratio(ours, peer).is_some())
    }
}

/// The bounds of all measurements.
#[derive(Debug, Default)]
struct AllBounds {
    runs: BTreeMap<u64, Bounds>,
    /// Those that were measured directly before a case in a round.
    cases: BTreeMap<(When, Case), Bounds>,
}

impl AllBounds {
    fn of(records: &[Record]) -> Self {
        let mut all = Self::default();
        for record in records {
            match record {
                Record::Limit(limit) => all.runs.entry(limit.run).or_default().add(limit),
                Record::RoundLimit(RoundLimit { round, case, limit }) => {
                    all.cases.entry(((limit.run, *round), *case)).or_default().add(limit);
                }
                _ => {}
            }
        }
        all
    }

    /// Returns the limits of a case in a round. Earlier versions measured limits only once in a
    /// run.
    fn get(&self, when: When, case: Case) -> Option<&Bounds> {
        self.cases.get(&(when, case)).or_else(|| self.runs.get(&when.0))
    }
}

impl Cell {
    /// Adds the least times that the machine allows, for each round whose limits are known.
    fn add_limits(&mut self, bounds: &AllBounds, case: Case, bytes: usize) {
        let whens: BTreeSet<When> = self.times.values().flat_map(|times| times.keys().copied()).collect();
        self.add_times(LIMIT, &whens, |when| bounds.get(when, case)?.shared_memory(case, bytes));
        self.add_times(FLAG, &whens, |when| bounds.get(when, case)?.flag(case, bytes));
        self.add_times(TCP_LIMIT, &whens, |when| bounds.get(when, case)?.tcp(case, bytes));
    }

    /// Adds a library with its time in each round.
    fn add_times(&mut self, name: &str, whens: &BTreeSet<When>, time: impl Fn(When) -> Option<f64>) {
        let times = whens.iter().filter_map(|when| Some((*when, time(*when)?)));
        let times: BTreeMap<When, f64> = times.collect();
        if !times.is_empty() {
            self.times.insert(name.to_owned(), times);
        }
    }

    /// Adds the fastest one for each round.
    fn add_best_mpi(&mut self) {
        let mut better: BTreeMap<When, f64> = BTreeMap::new();
        for times in MPIS.iter().filter_map(|name| self.times.get(*name)) {
            for (when, us) in times {
                better.entry(*when).and_modify(|best| *best = best.min(*us)).or_insert(*us);
            }
        }
        if !better.is_empty() {
            self.times.insert(BEST_MPI.to_owned(), better);
        }
    }

    /// Returns the median time of a library in microseconds, in the last run that measured it.
    pub(crate) fn time(&self, library: &str) -> Option<f64> {
        let times = self.times.get(library)?;
        let ((last, _), _) = times.last_key_value()?;
        Some(median(times.range((*last, 0)..).map(|(_, us)| *us).collect()))
    }

    /// Returns the ratios of the last run that measured both, or `None` if there is none.
    pub(crate) fn ratio(&self, ours: &str, peer: &str) -> Option<Ratio> {
        self.by_fastest(ours, &[peer])
    }

    /// Returns the ratios of a library to the fastest of these peers in each round, like
    /// [`ratio`](Self::ratio).
    pub(crate) fn by_fastest(&self, library: &str, peers: &[&str]) -> Option<Ratio> {
        let fastest = |when| {
            let times = peers.iter().filter_map(|peer| self.times.get(*peer)?.get(when).copied());
            times.reduce(f64::min)
        };
        let times = self.times.get(library)?.iter();
        let ratios: BTreeMap<When, f64> =
            times.filter_map(|(when, us)| Some((*when, us / fastest(when)?))).collect();
        let ((last, _), _) = ratios.last_key_value()?;
        let rounds = ratios.range((*last, 0)..).map(|((_, round), ratio)| (*round, *ratio));
        Some(Ratio { rounds: rounds.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::collective::Collective;
    use super::super::record::{Limit, Time};
    use super::*;

    const CASE: Case = Case { collective: Collective::AllReduce, ranks: 2, rotates: false };

    fn time(when: When, library: &str, us: f64) -> Record {
        let (run, round) = when;
        Record::Time(Time { run, round, library: library.into(), case: CASE, bytes: 4, us })
    }

    fn ratio(records: &[Record], ours: &str, peer: &str) -> Option<Ratio> {
        let comparison = Comparison::of(records);
        comparison.cells(CASE).next().and_then(|(_, cell)| cell.ratio(ours, peer))
    }

    /// Each peer was the fastest one in a round of its own, and the machine slower in the second.
    #[test]
    fn the_fastest_peer_is_that_of_each_round() {
        let records = [
            time((1, 1), "comm-shm", 1.0),
            time((1, 1), "gloo", 2.0),
            time((1, 1), "openmpi", 8.0),
            time((1, 2), "comm-shm", 20.0),
            time((1, 2), "gloo", 80.0),
            time((1, 2), "openmpi", 40.0),
        ];
        let comparison = Comparison::of(&records);
        let (_, cell) = comparison.cells(CASE).next().unwrap();
        let by_fastest = |library| cell.by_fastest(library, &["gloo", "openmpi"]).unwrap().rounds;
        assert_eq!(by_fastest("comm-shm"), [(1, 0.5), (2, 0.5)]);
        assert_eq!(by_fastest("gloo"), [(1, 1.0), (2, 2.0)]);
        assert_eq!(cell.by_fastest("comm-shm", &["mpich"]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was ten times slower in the second round.
        let records = [
            time((1, 1), "comm-shm", 1.0),
            time((1, 1), "gloo", 2.0),
            time((1, 2), "comm-shm", 10.0),
            time((1, 2), "gloo", 20.0),
            time((1, 3), "comm-shm", 3.0),
        ];
        let ratio = ratio(&records, "comm-shm", "gloo").unwrap();
        assert_eq!(ratio.rounds, [(1, 0.5), (2, 0.5)]);
        assert_eq!(ratio.median(), 0.5);
    }

    #[test]
    fn the_best_mpi_is_the_faster_one_of_each_round() {
        let records = [
            time((1, 1), "comm-shm", 1.0),
            time((1, 1), "openmpi", 2.0),
            time((1, 1), "mpich", 4.0),
            time((1, 2), "comm-shm", 1.0),
            time((1, 2), "openmpi", 8.0),
            time((1, 2), "mpich", 4.0),
            time((1, 3), "comm-shm", 1.0),
            time((1, 3), "mpich", 10.0),
        ];
        let ratio = ratio(&records, "comm-shm", BEST_MPI).unwrap();
        assert_eq!(ratio.rounds, [(1, 0.5), (2, 0.25), (3, 0.1)]);
    }

    fn flag(run: u64, value: f64) -> Limit {
        let (limit, detail, unit) = ("flag in memory, round trip".into(), "spinning".into(), "us".into());
        Limit { run, limit, detail, value, unit }
    }

    #[test]
    fn a_ratio_to_a_limit_takes_the_limit_of_the_same_round_and_case() {
        let barrier = Case { collective: Collective::Barrier, ..CASE };
        let round = |when: When, case, value| {
            Record::RoundLimit(RoundLimit { round: when.1, case, limit: flag(when.0, value) })
        };
        // The machine was ten times slower in the second round, and measured no limit in the third.
        let records = [
            Record::Limit(flag(1, 4.0)),
            round((1, 1), barrier, 7.0),
            round((1, 1), CASE, 1.0),
            time((1, 1), "comm-shm", 2.0),
            round((1, 2), CASE, 9.0),
            round((1, 2), CASE, 10.0),
            time((1, 2), "comm-shm", 20.0),
            round((1, 3), barrier, 7.0),
            time((1, 3), "comm-shm", 12.0),
            round((2, 3), CASE, 7.0),
        ];
        assert_eq!(ratio(&records, "comm-shm", FLAG).unwrap().rounds, [(1, 2.0), (2, 2.0), (3, 3.0)]);
    }

    #[test]
    fn a_limit_of_a_run_applies_to_all_its_rounds_that_measured_none() {
        let records =
            [Record::Limit(flag(1, 0.5)), time((1, 1), "comm-shm", 1.0), time((1, 2), "comm-shm", 2.0)];
        assert_eq!(ratio(&records, "comm-shm", FLAG).unwrap().rounds, [(1, 2.0), (2, 4.0)]);
    }

    #[test]
    fn a_repeated_measurement_replaces_the_earlier_one() {
        let records = [
            time((1, 1), "comm-shm", 9.0),
            time((1, 1), "gloo", 1.0),
            time((2, 1), "comm-shm", 5.0),
            time((2, 1), "comm-shm", 1.0),
            time((2, 1), "gloo", 2.0),
            time((3, 1), "comm-shm", 7.0),
        ];
        assert_eq!(ratio(&records, "comm-shm", "gloo").unwrap().rounds, [(1, 0.5)]);
        let comparison = Comparison::of(&records);
        let (_, cell) = comparison.cells(CASE).next().unwrap();
        assert_eq!(
            (cell.time("comm-shm"), cell.time("gloo"), cell.time("mpich")),
            (Some(7.0), Some(2.0), None)
        );
    }

    #[test]
    fn a_miss_needs_the_median_and_most_rounds() {
        let of = |ratios: &[f64]| Ratio { rounds: (1..).zip(ratios.iter().copied()).collect() };
        assert!(of(&[1.2, 1.2, 1.2, 0.5, 0.5]).misses(1.1));
        assert!(!of(&[9.0, 9.0, 1.0, 1.0, 1.0]).misses(1.1));
        assert!(of(&[1.2]).misses(1.1) && !of(&[1.1]).misses(1.1));
        // Half of an even number of rounds is not most of them, wherever the median lies.
        assert!(!of(&[1.0, 1.0, 5.0, 5.0]).misses(1.1));
        assert_eq!(of(&[1.0, 1.0, 5.0, 5.0]).above(1.1), 2);
    }

    #[test]
    fn libraries_without_a_common_round_are_no_pair() {
        let records = [
            time((1, 1), "comm-tcp", 1.0),
            time((1, 1), "comm-shm", 1.0),
            time((1, 1), "openmpi-tcp", 1.0),
            time((1, 2), "gloo", 1.0),
        ];
        let comparison = Comparison::of(&records);
        assert_eq!(comparison.pairs(), [("comm-tcp".to_owned(), "openmpi-tcp".to_owned())]);
        assert_eq!(comparison.libraries(), ["comm-shm", "comm-tcp", "openmpi-tcp", "gloo"]);
    }
}

//! Overheads of training, and their ratios within a round.

use std::collections::{BTreeMap, BTreeSet};

use comm_cli::__private::statistics::median;

use super::model::TrainingCase;
use crate::compare::ratio::{Ratio, When};
use crate::compare::record::{Record, StepTime};

/// All times of training steps by case and library.
#[derive(Debug, Default)]
pub(super) struct Overheads {
    times: BTreeMap<TrainingCase, BTreeMap<String, BTreeMap<When, StepTime>>>,
}

impl Overheads {
    pub(super) fn of(records: &[Record]) -> Self {
        let mut overheads = Self::default();
        for record in records {
            let Record::StepTime(time) = record else { continue };
            // A repeated measurement replaces the earlier one.
            let times =
                overheads.times.entry(time.case).or_default().entry(time.library.clone()).or_default();
            times.insert((time.run, time.round), time.clone());
        }
        overheads
    }

    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Returns every case, in the order of the report.
    pub(super) fn cases(&self) -> impl Iterator<Item = TrainingCase> {
        self.times.keys().copied()
    }

    /// Returns the libraries of all cases: this library first.
    pub(super) fn libraries(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.times.values().flat_map(BTreeMap::keys).collect();
        names.into_iter().cloned().collect()
    }

    /// Returns the runs with measurements.
    pub(super) fn runs(&self) -> BTreeSet<u64> {
        let times = self.times.values().flat_map(BTreeMap::values).flat_map(BTreeMap::keys);
        times.map(|(run, _)| *run).collect()
    }

    /// Returns the measurements of a library in the last run that has any, one per round.
    pub(super) fn rounds(&self, case: TrainingCase, library: &str) -> Vec<&StepTime> {
        let Some(times) = self.times.get(&case).and_then(|times| times.get(library)) else {
            return Vec::new();
        };
        let last = times.last_key_value().map_or(0, |((run, _), _)| *run);
        times.range((last, 0)..).map(|(_, time)| time).collect()
    }

    /// Returns the median of a time over the rounds of [`Overheads::rounds`].
    pub(super) fn median(
        &self,
        case: TrainingCase,
        library: &str,
        time: impl Fn(&StepTime) -> Option<f64>,
    ) -> Option<f64> {
        let times: Vec<f64> = self.rounds(case, library).into_iter().filter_map(time).collect();
        (!times.is_empty()).then(|| median(times))
    }

    /// Returns our overhead divided by the lowest overhead of some peers in the same round, in the
    /// last run that measured both. A peer's overhead counts as a microsecond at least, so that
    /// noise around zero is no advantage of ours.
    pub(super) fn ratio(&self, case: TrainingCase, ours: &str, peers: &[&str]) -> Option<Ratio> {
        let times = self.times.get(&case)?;
        let peer = |when: &When| {
            let peers = peers.iter().filter_map(|peer| times.get(*peer)?.get(when));
            peers.map(|time| time.overhead_us).min_by(f64::total_cmp)
        };
        let of_round = |(when, time): (&When, &StepTime)| {
            let peer = peer(when)?;
            Some((*when, time.overhead_us / peer.max(1.0)))
        };
        let ratios: BTreeMap<When, f64> = times.get(ours)?.iter().filter_map(of_round).collect();
        let ((last, _), _) = ratios.last_key_value()?;
        let rounds = ratios.range((*last, 0)..).map(|((_, round), ratio)| (*round, *ratio));
        Some(Ratio { rounds: rounds.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::TrainingModel;
    use super::super::tests::time;
    use super::*;

    const CASE: TrainingCase = TrainingCase { ranks: 2, model: TrainingModel::LargePerceptron };

    #[test]
    fn ratios_use_the_fastest_peer_of_the_same_round() {
        let records = [
            time((1, 1), "comm-shm", CASE, 10.0),
            time((1, 1), "pytorch", CASE, 100.0),
            time((1, 1), "pytorch-view", CASE, 80.0),
            time((1, 2), "comm-shm", CASE, 20.0),
            time((1, 2), "pytorch", CASE, 40.0),
            time((1, 2), "pytorch-view", CASE, 50.0),
            time((1, 3), "comm-shm", CASE, 30.0),
        ];
        let ratio = Overheads::of(&records).ratio(CASE, "comm-shm", &["pytorch", "pytorch-view"]).unwrap();
        assert_eq!(ratio.rounds, [(1, 0.125), (2, 0.5)]);
    }

    #[test]
    fn the_last_run_and_the_last_of_repeated_measurements_count() {
        let records = [
            time((1, 1), "comm-shm", CASE, 90.0),
            time((1, 1), "pytorch", CASE, 10.0),
            time((2, 1), "comm-shm", CASE, 50.0),
            time((2, 1), "comm-shm", CASE, 1.0),
            time((2, 1), "pytorch", CASE, 10.0),
        ];
        let overheads = Overheads::of(&records);
        assert_eq!(overheads.ratio(CASE, "comm-shm", &["pytorch"]).unwrap().rounds, [(1, 0.1)]);
        assert_eq!(overheads.median(CASE, "comm-shm", |time| Some(time.overhead_us)), Some(1.0));
        assert_eq!(overheads.ratio(CASE, "comm-tcp", &["pytorch"]), None);
        assert_eq!(overheads.ratio(CASE, "comm-shm", &["gloo"]), None);
    }

    #[test]
    fn a_peer_without_overhead_is_not_beaten() {
        let records = [time((1, 1), "comm-shm", CASE, 5.0), time((1, 1), "pytorch", CASE, -0.5)];
        let ratio = Overheads::of(&records).ratio(CASE, "comm-shm", &["pytorch"]).unwrap();
        assert_eq!(ratio.rounds, [(1, 5.0)]);
    }
}

//! The section on bandwidth.

use std::collections::BTreeMap;

use super::table::Table;
use crate::record::{Record, Speed, Subject};

const ABOUT: &str = "\
Average times of consecutive calls on the slowest rank, for sums of f32; medians over rounds. In a round, all implementations are measured
consecutively, in rotating order. GB/s is bytes of the larger buffer divided by time (`algbw` of nccl-tests). A copy moves the same number of
bytes within device memory. PyTorch uses the same libnccl. Ratios are taken within a round: median, minimum and maximum; above 1, comm takes
less time. Ranks that share a device take turns on it, so their times say nothing about devices of their own.
";

/// Ranks, collective and bytes.
type Key<'a> = (usize, &'a str, usize);
/// The times of one implementation by round.
type Rounds = BTreeMap<usize, f64>;

pub(super) fn part(records: &[Record]) -> String {
    let mut times: BTreeMap<Key<'_>, BTreeMap<Subject, Rounds>> = BTreeMap::new();
    let mut missing = String::new();
    for record in records {
        match record {
            Record::Speed(Speed { collective, ranks, bytes, round, subject, seconds }) => {
                let of = times.entry((*ranks, collective, *bytes)).or_default();
                of.entry(*subject).or_default().insert(*round, *seconds);
            }
            Record::NotMeasured(why) => missing += &format!("- {why}\n"),
            _ => {}
        }
    }
    if times.is_empty() && missing.is_empty() {
        return "## Bandwidth\n\nNot measured.\n".into();
    }
    let mut parts = vec!["## Bandwidth\n".to_owned()];
    if !times.is_empty() {
        parts.extend([ABOUT.to_owned(), table(&times)]);
    }
    if !missing.is_empty() {
        parts.extend(["Not measured:\n".to_owned(), missing]);
    }
    parts.join("\n")
}

fn table(times: &BTreeMap<Key<'_>, BTreeMap<Subject, Rounds>>) -> String {
    let names =
        ["ranks", "collective", "bytes", "time", "GB/s", "time of a copy / comm", "time of PyTorch / comm"];
    let mut table = Table::new(&names);
    for ((ranks, collective, bytes), subjects) in times {
        let Some(ours) = subjects.get(&Subject::Ours) else { continue };
        let Some(time) = median(ours.values().copied().collect()) else { continue };
        let beside = |subject| subjects.get(&subject).map_or_else(String::new, |theirs| ratio(theirs, ours));
        table.row([
            ranks.to_string(),
            (*collective).to_owned(),
            bytes.to_string(),
            format!("{:.1} us", time * 1e6),
            format!("{:.2}", *bytes as f64 / time / 1e9),
            beside(Subject::Copy),
            beside(Subject::Torch),
        ]);
    }
    table.to_string()
}

/// Returns the ratios of the rounds that have both times.
fn ratio(theirs: &Rounds, ours: &Rounds) -> String {
    let ratios = ours.iter().filter_map(|(round, ours)| Some(theirs.get(round)? / ours));
    let ratios: Vec<f64> = ratios.collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = ratios.iter().copied().fold(0.0, f64::max);
    median(ratios).map_or_else(String::new, |median| format!("{median:.2} ({least:.2} to {greatest:.2})"))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_of_rounds_that_have_both() {
        let ours = Rounds::from([(0, 2.0), (1, 1.0), (2, 4.0)]);
        let theirs = Rounds::from([(0, 4.0), (1, 1.0), (3, 100.0)]);
        assert_eq!(ratio(&theirs, &ours), "1.50 (1.00 to 2.00)");
        assert_eq!(ratio(&Rounds::new(), &ours), "");
    }
}

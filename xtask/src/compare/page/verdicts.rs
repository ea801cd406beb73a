//! The section on bars.

use std::collections::BTreeSet;

use comm_cli::__private::units::about;

use super::super::bars::{AT_LIMIT, BARS, Bar, Threshold, Verdict};
use super::super::collective::Collective;
use super::super::ratio::Comparison;
use super::{ratio, table};

/// Returns a table with a row per bar that was measured, and a column per number of ranks.
pub(super) fn section(comparison: &Comparison) -> String {
    let ranks: BTreeSet<usize> = comparison.cases().iter().map(|case| case.ranks).collect();
    let mut head: Vec<String> = ["bar", "limit"].map(String::from).to_vec();
    head.extend(ranks.iter().map(|ranks| format!("{ranks} ranks")));
    let row = |bar: &Bar| {
        let verdicts: Vec<_> = ranks.iter().map(|ranks| bar.verdict(comparison, *ranks)).collect();
        verdicts.iter().any(Option::is_some).then(|| {
            let cells =
                verdicts.into_iter().map(|verdict| verdict.map_or("".into(), |verdict| cell(bar, &verdict)));
            [name(bar, comparison), ratio(bar.limit.value())].into_iter().chain(cells).collect()
        })
    };
    let rows: Vec<Vec<String>> = BARS.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "## Bars\n\nA cell shows the highest ratio. A bar is missed if the median and most rounds are above its limit.\n\n{}",
        table(&head, &rows)
    )
}

fn name(bar: &Bar, comparison: &Comparison) -> String {
    let collectives = match bar.collectives {
        [one] => one.to_string(),
        all if all.len() == Collective::ALL.len() => "every collective".into(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
    };
    let (first, last) = bar.sizes.clone().into_inner();
    let sizes = match (first, last) {
        (0, usize::MAX) => String::new(),
        (0, last) => format!(", to {}", about(last as f64)),
        (first, usize::MAX) if first.is_power_of_two() => format!(", from {}", about(first as f64)),
        (first, _) => format!(", above {}", about((first - 1) as f64)),
    };
    let what = match bar.limit {
        Threshold::Mean(_) => "geometric mean".to_owned(),
        Threshold::Each(_) => "every size".to_owned(),
        Threshold::EachBeyondLimit(_) => format!("every size above {AT_LIMIT} times the limit"),
    };
    format!("{} by {}: {collectives}{sizes}, {what}", bar.ours(comparison), bar.peer)
}

fn cell(bar: &Bar, verdict: &Verdict) -> String {
    let size = match verdict.bytes {
        Some(0) | None => String::new(),
        Some(bytes) => format!(" {}", about(bytes as f64)),
    };
    let at = match bar.collectives {
        [_] => size.trim_start().to_owned(),
        _ => format!("{}{size}", verdict.collective),
    };
    let at = if at.is_empty() { at } else { format!(" ({at})") };
    if verdict.met {
        return format!("{}{at}", ratio(verdict.value));
    }
    let (missed, held) = verdict.misses;
    let others = if held > 1 { format!(", {missed} of {held}") } else { String::new() };
    let rounds = format!("{} of {} rounds", verdict.above, verdict.rounds);
    format!("**{} missed**{at} in {rounds}{others}", ratio(verdict.value))
}

//! The tables of times and ratios.

use std::collections::BTreeSet;

use comm_cli::__private::units::{about, time};

use super::super::bars::mean_of;
use super::super::ratio::{Cell, Comparison, Ratio};
use super::super::record::Case;
use super::{ABSENT, ratio, table};

/// Returns the geometric means over all sizes: a table per number of ranks, a row per pair that was
/// measured with it, and a column per collective.
pub(super) fn means(comparison: &Comparison) -> String {
    let cases = comparison.cases();
    let pairs = comparison.pairs();
    if pairs.is_empty() {
        return String::new();
    }
    let mut text = String::from("## Geometric means\n\nGeometric means of the ratios over all sizes.\n\n");
    for (rotates, ranks) in cases.iter().map(|case| (case.rotates, case.ranks)).collect::<BTreeSet<_>>() {
        let cases: Vec<&Case> =
            cases.iter().filter(|case| (case.rotates, case.ranks) == (rotates, ranks)).collect();
        let mut head = vec![format!("{ranks} ranks{}", if rotates { ", from memory" } else { "" })];
        head.extend(cases.iter().map(|case| case.collective.to_string()));
        let row = |(ours, peer): &(String, String)| {
            let means: Vec<_> = cases.iter().map(|case| mean_of(comparison, **case, ours, peer)).collect();
            let cells = means.iter().map(|mean| mean.map_or(ABSENT.into(), ratio));
            let is_measured = means.iter().any(Option::is_some);
            is_measured.then(|| [format!("{ours} by {peer}")].into_iter().chain(cells).collect())
        };
        text += &table(&head, &pairs.iter().filter_map(row).collect::<Vec<_>>());
    }
    text
}

/// Returns a table of times and one of ratios for every case.
pub(super) fn tables(comparison: &Comparison) -> String {
    comparison.cases().into_iter().map(|case| of_case(comparison, case)).collect()
}

fn of_case(comparison: &Comparison, case: Case) -> String {
    let cells: Vec<(usize, &Cell)> = comparison.cells(case).collect();
    let libraries: Vec<String> = comparison
        .libraries()
        .into_iter()
        .filter(|library| cells.iter().any(|(_, cell)| cell.time(library).is_some()))
        .collect();
    let pairs: Vec<(String, String)> = comparison
        .pairs()
        .into_iter()
        .filter(|(ours, peer)| cells.iter().any(|(_, cell)| cell.ratio(ours, peer).is_some()))
        .collect();
    let times = table_by_size(&libraries, &cells, "size", String::clone, |cell, library| {
        cell.time(library).map(|us| time(us * 1e-6))
    });
    let title = |(ours, peer): &(String, String)| format!("{ours} by {peer}");
    let ratios =
        table_by_size(&pairs, &cells, "size", title, |cell, (ours, peer)| cell.ratio(ours, peer).map(spread));
    format!(
        "<details><summary>{case}</summary>\n\nTimes:\n\n{times}Ratios, with their range over the rounds:\
         \n\n{ratios}</details>\n\n"
    )
}

/// Formats a table with a row per size.
fn table_by_size<T>(
    columns: &[T],
    cells: &[(usize, &Cell)],
    first: &str,
    title: impl Fn(&T) -> String,
    text: impl Fn(&Cell, &T) -> Option<String>,
) -> String {
    let head: Vec<String> = [first.to_owned()].into_iter().chain(columns.iter().map(title)).collect();
    let row = |(bytes, cell): &(usize, &Cell)| {
        let of_column = |column| text(cell, column).unwrap_or_else(|| ABSENT.into());
        [about(*bytes as f64)].into_iter().chain(columns.iter().map(of_column)).collect()
    };
    table(&head, &cells.iter().map(row).collect::<Vec<_>>())
}

/// Formats the median, and the range if there are several rounds.
fn spread(of: Ratio) -> String {
    let numbers = || of.rounds.iter().map(|(_, ratio)| *ratio);
    let (least, most) = (numbers().fold(f64::INFINITY, f64::min), numbers().fold(0.0, f64::max));
    let middle = ratio(of.median());
    if of.rounds.len() < 2 { middle } else { format!("{middle} ({} to {})", ratio(least), ratio(most)) }
}

//! The section of the report on training.

use std::collections::BTreeSet;

use comm_cli::__private::units::time;

use super::bars::{OVERHEAD_BARS, OverheadBar};
use super::model::{TrainingCase, TrainingModel};
use super::overhead::Overheads;
use crate::compare::library::is_ours;
use crate::compare::page::{ABSENT, ratio, table};
use crate::compare::ratio::Ratio;
use crate::compare::record::{Record, Run, StepTime};

/// Returns the section.
pub(super) fn text(overheads: &Overheads, records: &[Record], picture: &str) -> String {
    let mut text = String::from(
        "## Data parallel training\n\nWritten by `cargo xtask compare --ddp`. The overhead is the time of a training step with \
         synchronization minus that of the same step without, in the same processes: the median over pairs of blocks of steps. \
         Each rank computes in `f32` on one thread, and all buckets have PyTorch's default limits, 1 MiB and then 25 MiB. A \
         *perceptron* runs forward, backward and SGD; with *fixed computation* every layer of backward uses the processor for \
         the same time in both libraries and touches no memory. *pytorch-view* has `gradient_as_bucket_view=True`, *bf16* is a \
         hook that sends gradients as `bf16`. Weights, samples, first losses and first gradients are the same for all.\n\n",
    );
    text += &runs(overheads, records);
    let ranks: BTreeSet<usize> = overheads.cases().map(|case| case.ranks).collect();
    for ranks in &ranks {
        text += &bars(overheads, *ranks);
    }
    text += &format!("![Overhead over the number of parameters]({picture})\n\n");
    text += &overheads.cases().map(|case| of_case(overheads, case)).collect::<String>();
    text
}

/// Describes every run with measurements, and its failures.
fn runs(overheads: &Overheads, records: &[Record]) -> String {
    let measured = overheads.runs();
    let mut text = String::new();
    for record in records {
        match record {
            Record::Run(Run { run, date, commit, machine }) if measured.contains(run) => {
                text += &format!("{date}, commit `{commit}`: {}, {} cores", machine.cpu, machine.cores);
                let peer = records.iter().find_map(|record| match record {
                    Record::Version(version) if version.run == *run && version.library == "pytorch" => {
                        Some(&version.version)
                    }
                    _ => None,
                });
                text += &peer.map_or_else(String::new, |version| format!("; {version}"));
                text += ".\n\n";
            }
            _ => {}
        }
    }
    let failures: BTreeSet<String> = records
        .iter()
        .filter_map(|record| match record {
            Record::StepFailure(failure) if measured.contains(&failure.run) => {
                Some(format!("- {}, round {}: {}\n", failure.library, failure.round, failure.reason))
            }
            _ => None,
        })
        .collect();
    if failures.is_empty() {
        return text;
    }
    format!("{text}These failed:\n\n{}\n", failures.into_iter().collect::<String>())
}

/// Returns the table of bars that were measured.
fn bars(overheads: &Overheads, ranks: usize) -> String {
    let head = [format!("overhead, {ranks} ranks"), "limit".into(), "perceptron".into(), "fixed".into()];
    let row = |bar: &OverheadBar| {
        let cells = bar.models.map(|model| bar.ratio(overheads, ranks, model));
        cells.iter().any(Option::is_some).then(|| {
            let cells =
                cells.map(|cell| cell.map_or_else(|| ABSENT.into(), |found| verdict(&found, bar.limit)));
            [name(bar), ratio(bar.limit)].into_iter().chain(cells).collect()
        })
    };
    let rows: Vec<Vec<String>> = OVERHEAD_BARS.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "A cell shows the median over the rounds of our overhead divided by PyTorch's, with the range; PyTorch's is the smaller \
         one of a round with and without `gradient_as_bucket_view`. A bar is missed if the median and most rounds are above \
         its limit.\n\n{}",
        table(&head, &rows)
    )
}

fn name(bar: &OverheadBar) -> String {
    let [model, _] = bar.models;
    let size = if model == TrainingModel::LargePerceptron { "25 M" } else { "0.7 M" };
    let peer = bar.peers.first().copied().unwrap_or_default();
    format!("{} by {peer}: {size} parameters", bar.ours)
}

fn verdict(found: &Ratio, limit: f64) -> String {
    let range = format!("{} ({})", signed_ratio(found.median()), range(found));
    if !found.misses(limit) {
        return range;
    }
    format!("**{range} missed** in {} of {} rounds", found.above(limit), found.rounds.len())
}

fn range(found: &Ratio) -> String {
    let numbers = || found.rounds.iter().map(|(_, ratio)| *ratio);
    let (least, most) =
        (numbers().fold(f64::INFINITY, f64::min), numbers().fold(f64::NEG_INFINITY, f64::max));
    format!("{} to {}", signed_ratio(least), signed_ratio(most))
}

/// Formats a ratio, which is negative if steps with synchronization were faster.
fn signed_ratio(value: f64) -> String {
    if value < 0.0 { format!("-{}", ratio(-value).trim_start_matches("< ")) } else { ratio(value) }
}

/// Returns the table of times of a case.
fn of_case(overheads: &Overheads, case: TrainingCase) -> String {
    let head =
        ["", "step without", "step with", "overhead", "range over the rounds", "of the step", "exposed"];
    let row = |library: &String| {
        let of = |time: fn(&StepTime) -> Option<f64>| overheads.median(case, library, time);
        let (without, overhead) = (of(|time| Some(time.without_us))?, of(|time| Some(time.overhead_us))?);
        let rounds = overheads.rounds(case, library);
        let numbers = || rounds.iter().map(|time| time.overhead_us);
        let (least, most) =
            (numbers().fold(f64::INFINITY, f64::min), numbers().fold(f64::NEG_INFINITY, f64::max));
        Some(vec![
            library.clone(),
            signed_time(without),
            of(|time| Some(time.with_us)).map_or(ABSENT.into(), signed_time),
            signed_time(overhead),
            format!("{} to {}", signed_time(least), signed_time(most)),
            format!("{:.0} %", overhead / without * 100.0),
            of(|time| time.exposed_us).map_or(ABSENT.into(), signed_time),
        ])
    };
    let mut libraries = overheads.libraries();
    libraries.sort_by_key(|library| !is_ours(library));
    let rows: Vec<Vec<String>> = libraries.iter().filter_map(row).collect();
    let TrainingCase { ranks, model } = case;
    format!("{ranks} ranks, {}:\n\n{}", model.title(), table(&head.map(String::from), &rows))
}

/// Formats microseconds, which are negative if noise exceeds the overhead.
fn signed_time(us: f64) -> String {
    let text = time(us.abs() * 1e-6);
    if us < 0.0 { format!("-{text}") } else { text }
}

//! The report of a run.

mod speeds;
mod table;

use std::path::Path;

use crate::record::{CaseResult, Record, Verdict};
use crate::{CASES, Machine, Placement};
use table::Table;

const TITLE: &str = "# GPU report\n";

const ORIGIN: &str = "\
Written by `cargo xtask gpu-check`, which runs on a real device the suite that every `cargo test` runs on the emulator of
`crates/gpu-emu`. [nccl.md](nccl.md) describes it.
";

const EMPTY: &str = "\
**Nothing in this repository has run on a GPU yet.** No case below has been tried on one, and no time has been measured. The code for GPUs is
tested on an emulated device, which checks how comm calls NCCL and CUDA, but not the behaviour of these libraries.

On a machine with a GPU, this command replaces this page by a report:

```sh
cargo xtask gpu-check
```

[nccl.md](nccl.md) lists the requirements, and describes how to run it on a machine without cargo or this repository.
";

/// Returns the report of these records. Without records, it states that nothing has run.
#[must_use]
pub fn page(records: &[Record]) -> String {
    if records.is_empty() {
        return [TITLE, EMPTY, &suite()].join("\n");
    }
    let mut parts =
        vec![TITLE.to_owned(), ORIGIN.to_owned(), place(records), summary(records), cases(records)];
    parts.push(speeds::part(records));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// Lists the cases of the suite.
fn suite() -> String {
    let mut table = Table::new(&["case", "checks", "ranks"]);
    for case in &CASES {
        let ranks = match case.ranks {
            crate::Ranks::One => "1",
            crate::Ranks::Several => "2 and more",
            crate::Ranks::OneAndSeveral => "1, and 2 and more",
        };
        table.row([case.name.into(), case.shows.into(), ranks.into()]);
    }
    format!("## The suite\n\n{table}")
}

fn place(records: &[Record]) -> String {
    let mut table = Table::new(&["", ""]);
    for record in records {
        match record {
            Record::Machine(machine) => about(machine, &mut table),
            Record::Placement(Placement { devices, environment }) => {
                let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
                let set: Vec<String> =
                    environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let set = if set.is_empty() { String::new() } else { format!(", with {}", set.join(" ")) };
                table.row(["devices of several ranks".into(), format!("{}{set}", devices.join(", "))]);
            }
            _ => {}
        }
    }
    format!("## Machine\n\n{table}")
}

fn about(machine: &Machine, table: &mut Table) {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let rows = [
        ("date", machine.date.clone()),
        ("commit", machine.commit.clone()),
        (
            "GPU",
            format!("{}, compute capability {}, {} MiB", machine.gpu, machine.compute, machine.memory_mib),
        ),
        ("visible GPUs", machine.gpus.to_string()),
        ("driver", format!("{}, for CUDA {}, `{}`", machine.driver, machine.cuda, name(&machine.libcuda))),
        ("NCCL", format!("{}, `{}`", machine.nccl(), name(&machine.libnccl))),
        ("kernel", machine.kernel.clone()),
    ];
    for (name, value) in rows {
        table.row([name.into(), value]);
    }
}

fn case_results(records: &[Record]) -> impl Iterator<Item = &CaseResult> {
    records.iter().filter_map(|record| match record {
        Record::Case(result) => Some(result),
        _ => None,
    })
}

/// Returns one line with the numbers of cases that passed, failed and were not run.
#[must_use]
pub fn count(records: &[Record]) -> String {
    let of = |verdict| case_results(records).filter(|ended| ended.verdict == verdict).count();
    let (passed, failed, not_run) = (of(Verdict::Passed), of(Verdict::Failed), of(Verdict::NotRun));
    format!("{passed} cases passed, {failed} failed, {not_run} were not run.")
}

fn summary(records: &[Record]) -> String {
    format!("{}\n", count(records))
}

/// Formats the result of a case on one line.
#[must_use]
pub fn line(ended: &CaseResult) -> String {
    let CaseResult { case, ranks, message, seconds, .. } = ended;
    let ranks = if *ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    format!("{:8} {case}, {ranks}, {seconds:.2} s{message}", verdict(ended.verdict))
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "FAILED",
        Verdict::NotRun => "not run",
    }
}

fn cases(records: &[Record]) -> String {
    let mut table = Table::new(&["case", "checks", "ranks", "result", "seconds"]);
    for ended in case_results(records) {
        let shows = CASES.iter().find(|case| case.name == ended.case).map_or("", |case| case.shows);
        let words = if ended.message.is_empty() { String::new() } else { format!(": {}", ended.message) };
        let result = format!("{}{words}", verdict(ended.verdict));
        let seconds = match ended.verdict {
            Verdict::NotRun => String::new(),
            _ => format!("{:.2}", ended.seconds),
        };
        table.row([ended.case.clone(), shows.into(), ended.ranks.to_string(), result, seconds]);
    }
    format!("## Cases\n\n{table}")
}

#[cfg(test)]
mod tests;

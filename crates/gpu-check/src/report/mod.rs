//! The page that tells what came out.

mod speeds;
mod table;

use std::path::Path;

use crate::record::{Ended, Record, Verdict};
use crate::{CASES, Place, Several};
use table::Table;

const TITLE: &str = "# On a real GPU\n";

const MADE: &str = "\
Written by `cargo xtask gpu-check`, which runs on a real device the suite that every `cargo test` runs on the emulator of
`crates/gpu-emu`. [nccl.md](nccl.md) describes it.
";

const NOTHING: &str = "\
**Nothing in this repository has run on a GPU yet.** No case below was tried on one, and no time was measured. The code for GPUs is
tested on an emulated device, which checks how comm calls NCCL and CUDA, but not the behaviour of these libraries.

On a machine with a GPU, this command replaces this page by a report:

```sh
cargo xtask gpu-check
```

[nccl.md](nccl.md) lists the requirements, and describes how to run it on a machine without cargo or this repository.
";

/// The page for these records; without any, one that says that nothing was run.
#[must_use]
pub fn page(records: &[Record]) -> String {
    if records.is_empty() {
        return [TITLE, NOTHING, &suite()].join("\n");
    }
    let mut parts = vec![TITLE.to_owned(), MADE.to_owned(), place(records), summary(records), cases(records)];
    parts.push(speeds::part(records));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// What the suite has, for who has not run it.
fn suite() -> String {
    let mut table = Table::new(&["case", "what it checks", "ranks"]);
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
            Record::Place(place) => about(place, &mut table),
            Record::Several(Several { devices, environment }) => {
                let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
                let set: Vec<String> =
                    environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let set = if set.is_empty() { String::new() } else { format!(", with {}", set.join(" ")) };
                table.row(["devices of several ranks".into(), format!("{}{set}", devices.join(", "))]);
            }
            _ => {}
        }
    }
    format!("## Where\n\n{table}")
}

fn about(place: &Place, table: &mut Table) {
    let path = |path: &Path| format!("`{}`", path.display());
    let rows = [
        ("date", place.date.clone()),
        ("commit", place.commit.clone()),
        ("GPU", format!("{}, compute capability {}, {} MiB", place.gpu, place.compute, place.memory_mib)),
        ("GPUs that the process can see", place.gpus.to_string()),
        ("driver", format!("{}, for CUDA {}, {}", place.driver, place.cuda, path(&place.libcuda))),
        ("NCCL", format!("{}, {}", place.nccl(), path(&place.libnccl))),
        ("kernel", place.kernel.clone()),
    ];
    for (name, value) in rows {
        table.row([name.into(), value]);
    }
}

fn ended(records: &[Record]) -> impl Iterator<Item = &Ended> {
    records.iter().filter_map(|record| match record {
        Record::Case(ended) => Some(ended),
        _ => None,
    })
}

/// How many cases passed, failed, and were not run, on one line; that is also said at the end of a run.
#[must_use]
pub fn count(records: &[Record]) -> String {
    let of = |verdict| ended(records).filter(|ended| ended.verdict == verdict).count();
    let (passed, failed, not_run) = (of(Verdict::Passed), of(Verdict::Failed), of(Verdict::NotRun));
    format!("{passed} cases passed, {failed} failed, {not_run} were not run.")
}

fn summary(records: &[Record]) -> String {
    format!("{}\n", count(records))
}

/// One case on one line, for who waits for it.
#[must_use]
pub fn line(ended: &Ended) -> String {
    let Ended { case, ranks, words, seconds, .. } = ended;
    let ranks = if *ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    format!("{:8} {case}, {ranks}, {seconds:.2} s{words}", verdict(ended.verdict))
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "FAILED",
        Verdict::NotRun => "not run",
    }
}

fn cases(records: &[Record]) -> String {
    let mut table = Table::new(&["case", "what it checks", "ranks", "result", "seconds"]);
    for ended in ended(records) {
        let shows = CASES.iter().find(|case| case.name == ended.case).map_or("", |case| case.shows);
        let words = if ended.words.is_empty() { String::new() } else { format!(": {}", ended.words) };
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

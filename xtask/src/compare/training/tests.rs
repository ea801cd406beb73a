//! Tests with invented measurements, and with shell scripts as programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Parser;

use super::program::{TrainingArgs, TrainingProgram};
use super::rounds::TrainingRounds;
use super::*;
use crate::compare::machine::Machine;
use crate::compare::record::{Run, StepFailure, StepTime, Version};

pub(super) fn time((run, round): (u64, u32), library: &str, case: TrainingCase, overhead_us: f64) -> Record {
    Record::StepTime(StepTime {
        run,
        round,
        library: library.into(),
        case,
        with_us: 1000.0 + overhead_us,
        without_us: 1000.0,
        overhead_us,
        exposed_us: library.starts_with("comm").then_some(3.5),
        loss: 7.0,
        norm: 6.0,
    })
}

fn records() -> Vec<Record> {
    let run = 1_700_000_000;
    let machine = Machine {
        cpu: "Imaginary 3000".into(),
        cores: 2,
        memory_gib: 24,
        kernel: "6.1.0".into(),
        congestion_control: "bbr".into(),
        cache_mib: 0,
    };
    let version = Version { run, library: "pytorch".into(), version: "DDP of PyTorch 2.0".into() };
    let mut records = vec![
        Record::Run(Run { run, date: "2026-11-21".into(), commit: "abc1234".into(), machine }),
        Record::Version(version),
    ];
    let overheads = [
        (TrainingModel::LargePerceptron, [15.0, 60.0, 120.0, 100.0]),
        (TrainingModel::LargeFixed, [10.0, 40.0, 100.0, 100.0]),
        (TrainingModel::SmallPerceptron, [-2.0, 5.0, 80.0, 90.0]),
    ];
    for (model, overheads) in overheads {
        let case = TrainingCase { ranks: 2, model };
        for round in 1..=3 {
            for (library, us) in ["comm-shm", "comm-tcp", "pytorch", "pytorch-view"].iter().zip(overheads) {
                records.push(time((run, round), library, case, us + f64::from(round)));
            }
        }
    }
    let (library, reason) = ("comm-tcp-bf16".into(), "exit status: 1: out of luck".into());
    records.push(Record::StepFailure(StepFailure { run, round: 2, library, ranks: 2, reason }));
    records
}

#[test]
fn the_section_lists_bars_and_times() {
    let records = records();
    let text = page::text(&Overheads::of(&records), &records, "page-ddp.svg");
    let (_, after_intro) = text.split_once("for all.\n").unwrap();
    assert_eq!(after_intro, include_str!("expected.txt"));
}

#[test]
fn records_that_were_written_and_read_give_the_same_section() {
    let records = records();
    let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let again: Vec<Record> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(again, records);
}

#[test]
fn every_library_has_a_curve_in_the_picture() {
    let svg = plot::picture(&Overheads::of(&records())).svg().unwrap();
    for name in ["comm-shm", "pytorch-view", "perceptron, 2 ranks", "fixed computation, 2 ranks"] {
        assert_eq!(svg.matches(&format!("\n{name}\n")).count(), 1, "{name}");
    }
}

#[test]
fn the_picture_is_next_to_the_page() {
    assert_eq!(picture_path(Path::new("docs/performance.md")), Path::new("docs/performance-ddp.svg"));
}

/// Logs its name and prints a line per model and variant.
#[derive(Debug)]
struct Script {
    name: &'static str,
    log: PathBuf,
    loss: f64,
    /// Commands after the lines.
    end: &'static str,
}

impl TrainingProgram for Script {
    fn variants(&self) -> &'static [&'static str] {
        &["plain", "bf16"]
    }

    fn library(&self, variant: &str) -> String {
        format!("{}-{variant}", self.name)
    }

    fn command(&self, args: &TrainingArgs) -> Command {
        let mut script = format!("echo {} {} >> {}\n", self.name, args.ranks, self.log.display());
        for model in TrainingModel::ALL {
            for variant in self.variants() {
                let row = serde_json::json!({
                    "model": model.name(), "variant": variant, "parameters": model.parameters(), "loss": self.loss,
                    "norm": 2.0, "pairs_us": [[1.5, 1.0]],
                });
                script += &format!("echo '{row}'\n");
            }
        }
        let mut command = Command::new("sh");
        command.args(["-c", &(script + self.end)]);
        command
    }
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    compare: Compare,
}

/// Measures rounds with a journal in a folder. Returns the programs in the order of their starts.
fn run(folder: &Path, rounds: u32, (loss, end): (f64, &'static str)) -> (Vec<String>, Vec<Record>) {
    let Line { compare } =
        Line::try_parse_from(["compare", "--ddp", "--rounds", &rounds.to_string()]).unwrap();
    let log = folder.join("log");
    fs::write(&log, "").unwrap();
    let script = |name, loss, end| -> Box<dyn TrainingProgram> {
        Box::new(Script { name, log: log.clone(), loss, end })
    };
    let programs = vec![script("one", 7.0, ""), script("two", loss, end)];
    let mut journal = Journal::open(&folder.join("page.jsonl"), false).unwrap();
    let rounds = TrainingRounds::new(&compare, programs);
    rounds.measure(7, &mut journal, &mut Vec::new(), |_| Ok(())).unwrap();
    let starts = fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect();
    (starts, journal.records)
}

#[test]
fn programs_take_turns_and_completed_rounds_are_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (starts, records) = run(folder.path(), 2, (7.0, ""));
    assert_eq!(starts, ["one 2", "two 2", "two 2", "one 2"]);
    assert_eq!(records.len(), 2 * 2 * 4 * 2);
    assert_eq!(run(folder.path(), 2, (7.0, "")).0.len(), 0);
    assert_eq!(run(folder.path(), 3, (7.0, "")).0, ["one 2", "two 2"]);
}

#[test]
fn a_failure_is_recorded_for_every_variant_and_not_repeated() {
    for (loss, end, reason) in [
        (7.0, "echo out of luck >&2; exit 3", "out of luck"),
        (7.1, "", "plain of mlp-0.7m: the first loss is 7.1, not 7"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (_, records) = run(folder.path(), 1, (loss, end));
        let failures = records.iter().filter_map(|record| match record {
            Record::StepFailure(failure) => Some((&*failure.library, &*failure.reason)),
            _ => None,
        });
        let failures: Vec<_> = failures.collect();
        assert!(
            matches!(failures[..], [("two-plain", text), ("two-bf16", _)] if text.contains(reason)),
            "{failures:?}"
        );
        assert_eq!(run(folder.path(), 1, (loss, end)).0.len(), 0);
    }
}

#[test]
fn training_has_defaults_of_its_own() {
    let parse = |words: &[&str]| Line::try_parse_from(["compare"].iter().chain(words));
    let of = |words: &[&str]| {
        let Compare { ranks, rounds, samples, sample_ms, .. } = parse(words).unwrap().compare;
        (ranks, rounds, samples, sample_ms)
    };
    assert_eq!(of(&[]), (vec![2, 4, 8], 5, 7, 20));
    assert_eq!(of(&["--ddp"]), (vec![2], 7, 4, 300));
    assert_eq!(of(&["--ddp", "--rounds", "1"]).1, 1);
    assert!(parse(&["--ddp", "--max", "1M"]).is_err());
}

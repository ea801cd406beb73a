//! The page of invented measurements.

use super::super::collective::Collective;
use super::super::machine::Machine;
use super::super::plot::picture;
use super::super::record::{Case, Failure, Limit, Missing, Run, Time, Version};
use super::*;

const RUN: u64 = 1_700_000_000;

fn records() -> Vec<Record> {
    let machine = Machine {
        cpu: "Imaginary 3000".into(),
        cores: 2,
        memory_gib: 24,
        kernel: "6.1.0".into(),
        congestion_control: "bbr".into(),
        cache_mib: 32,
    };
    let run = RUN;
    let mut records = vec![
        Record::Run(Run { run, date: "2026-11-21".into(), commit: "abc1234".into(), machine }),
        Record::Version(Version { run, library: "comm-shm".into(), version: "comm 0.1.0".into() }),
        Record::Version(Version { run, library: "openmpi".into(), version: "Open MPI 4.1.4".into() }),
        Record::Missing(Missing { run, library: "gloo".into(), reason: "there is no PyTorch".into() }),
        Record::Limit(Limit {
            run,
            limit: "memcpy".into(),
            detail: "64 KiB, 1 thread".into(),
            value: 44.04,
            unit: "GB/s".into(),
        }),
        Record::Limit(Limit {
            run,
            limit: "triad (f32)".into(),
            detail: "64 MiB, 2 threads".into(),
            value: 16.0,
            unit: "GB/s".into(),
        }),
    ];
    let times = [
        (Collective::AllReduce, 1024, [[0.5, 1.0], [0.5, 1.25], [4.0, 2.0]]),
        (Collective::AllReduce, 64 << 20, [[2.5e4, 5e4], [2.6e4, 5.2e4], [3e4, 5e4]]),
        (Collective::Barrier, 0, [[1.2, 1.0], [1.2, 1.0], [1.0, 1.0]]),
    ];
    for (collective, bytes, rounds) in times {
        for (round, [ours, theirs]) in (1..).zip(rounds) {
            for (library, us) in [("comm-shm", ours), ("openmpi", theirs)] {
                let (case, library) = (Case { collective, ranks: 2, rotates: false }, library.into());
                records.push(Record::Time(Time { run, round, library, case, bytes, us }));
            }
        }
    }
    let case = Case { collective: Collective::Broadcast, ranks: 2, rotates: true };
    for (library, us) in [("comm-shm", 900.0), ("openmpi", 1000.0)] {
        let library = library.into();
        records.push(Record::Time(Time { run, round: 1, library, case, bytes: 1 << 20, us }));
    }
    let case = Case { collective: Collective::AllToAll, ranks: 2, rotates: false };
    let reason = String::from("exit status: 1: out of luck");
    for round in 1..=3 {
        let (library, reason) = ("openmpi".into(), reason.clone());
        records.push(Record::Failure(Failure { run, round, library, case, reason }));
    }
    records
}

#[test]
fn the_page_lists_all_measurements() {
    let records = records();
    let text = text(&Comparison::of(&records), &records, &pictures());
    let (pictures, explained) = text.split_once("## What the numbers are\n").unwrap();
    assert!(pictures.ends_with("![all_reduce relative to the fastest peer](page-all_reduce.svg)\n\n"));
    let (_, numbers) = explained.split_once("## Bars\n").unwrap();
    assert_eq!(numbers, include_str!("expected.txt"));
}

#[test]
fn records_that_were_written_and_read_give_the_same_page() {
    let records = records();
    let lines: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let again: Vec<Record> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let page = |records: &[Record]| text(&Comparison::of(records), records, &pictures());
    assert_eq!(again, records);
    assert_eq!(page(&again), page(&records));
}

fn pictures() -> Vec<(Collective, String)> {
    vec![(Collective::AllReduce, "page-all_reduce.svg".into())]
}

#[test]
fn every_library_has_a_curve_in_the_picture() {
    let comparison = Comparison::of(&records());
    let svg = picture(&comparison, Collective::AllReduce).unwrap().svg().unwrap();
    for name in ["comm-shm", "openmpi", "2 ranks"] {
        assert_eq!(svg.matches(&format!("\n{name}\n")).count(), 1, "{name}");
    }
    assert!(svg.find("\ncomm-shm\n") < svg.find("\nopenmpi\n"), "this library comes first");
    assert!(picture(&comparison, Collective::Barrier).is_none(), "a single point is no curve");
}

#[test]
fn curves_are_ratios_to_the_fastest_peer() {
    let figure = picture(&Comparison::of(&records()), Collective::AllReduce).unwrap();
    let points = |name: &str| figure.panels[0].series.iter().find(|series| series.name == name).unwrap();
    let (small, large) = (1024.0, f64::from(64 << 20));
    assert_eq!(points("comm-shm").points, [(small, 0.5), (large, 0.5)]);
    assert_eq!(points("openmpi").points, [(small, 1.0), (large, 1.0)]);
}

#[test]
fn small_ratios_are_not_rounded_to_zero() {
    assert_eq!([1.254, 0.104, 0.0123, 0.000_4].map(ratio), ["1.25", "0.10", "0.012", "< 0.001"]);
}

#[test]
fn several_runs_are_listed_with_their_collectives_and_the_last_one_counts() {
    let mut records = records();
    let Record::Run(run) = records[0].clone() else { panic!("the first record describes the run") };
    records.push(Record::Run(Run { run: RUN + 1, commit: "def5678".into(), ..run }));
    let case = Case { collective: Collective::Barrier, ranks: 2, rotates: false };
    for (library, us) in [("comm-shm", 0.4), ("openmpi", 1.0)] {
        let (run, round, library) = (RUN + 1, 1, library.into());
        records.push(Record::Time(Time { run, round, library, case, bytes: 0, us }));
    }
    let text = text(&Comparison::of(&records), &records, &pictures());
    assert!(text.contains("commit `abc1234`, all_reduce, barrier, broadcast: "), "{text}");
    assert!(text.contains("commit `def5678`, barrier: "), "{text}");
    let comparison = Comparison::of(&records);
    let (_, cell) = comparison.cells(case).next().unwrap();
    assert_eq!(cell.ratio("comm-shm", "openmpi").unwrap().median(), 0.4);
}

#[test]
fn a_failure_is_listed_until_a_later_run_succeeds() {
    let mut records = records();
    let page = |records: &[Record]| text(&Comparison::of(records), records, &pictures());
    assert!(page(&records).contains("out of luck"));
    let case = Case { collective: Collective::AllToAll, ranks: 2, rotates: false };
    let time = |run| Record::Time(Time { run, round: 1, library: "openmpi".into(), case, bytes: 4, us: 1.0 });
    records.push(time(RUN));
    assert!(page(&records).contains("out of luck"), "it failed at other sizes of the same run");
    records.push(time(RUN + 1));
    assert!(!page(&records).contains("out of luck"));
}

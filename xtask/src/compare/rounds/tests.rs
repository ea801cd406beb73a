//! Tests of rounds with shell scripts instead of libraries and of the program that measures limits.

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Parser;

use super::*;

/// Logs its name and prints a row per size; from some size on it runs other code.
#[derive(Debug)]
struct Script {
    name: &'static str,
    log: PathBuf,
    instead: Option<(usize, &'static str)>,
}

impl Library for Script {
    fn name(&self) -> String {
        self.name.into()
    }

    fn measures(&self, case: Case) -> bool {
        case.collective != Collective::Broadcast || self.name != "two"
    }

    fn command(&self, args: &MeasurementArgs<'_>) -> Command {
        let case = args.case;
        let mut script =
            format!("echo {} {} {} >> {}\n", self.name, case.collective, case.ranks, self.log.display());
        for size in args.sizes {
            script += &match self.instead {
                Some((from, instead)) if *size >= from => format!("{instead}\n"),
                _ => format!("echo '{{\"bytes\":{size},\"time_us\":{{\"p50\":1.5}}}}'\n"),
            };
        }
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    compare: Compare,
}

/// Creates a program that logs its arguments and prints the round trip of a flag. Asked for that
/// between cores, it does not log, and prints the next number of the file `trips`. Another process
/// writes it: a child of another test could inherit a file that this one has open, and the kernel
/// does not start a program that is open for writing.
fn limits(folder: &Path) -> PathBuf {
    let (path, log) = (folder.join("limits"), folder.join("log"));
    let line = r#"{\"limit\":\"flag in memory, round trip\",\"detail\":\"spinning\",\"value\":$trip,\"unit\":\"us\"}"#;
    let (trips, log) = (folder.join("trips"), log.display());
    let next = format!("trip=$(head -n 1 {0}); sed -i 1d {0}", trips.display());
    let program = format!(
        "#!/bin/sh\nif [ \"$1\" = cores ]; then {next}; else echo limits $* >> {log}; fi\n\
         : ${{trip:=0.25}}\necho \"{line}\"\n"
    );
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(&path).arg(program).status().unwrap().success());
    path
}

/// Runs the measurements of a command line with a journal in a folder. Returns the programs in the
/// order of their starts.
fn measure(folder: &Path, line: &str, instead: Option<(usize, &'static str)>) -> (Vec<String>, Vec<Record>) {
    let (starts, records, _) = measure_with(folder, line, instead, &[]);
    (starts, records)
}

/// Measures while the round trips of a flag between cores are these, one after the other, and then
/// 0.25. Also returns what was printed.
fn measure_with(
    folder: &Path,
    line: &str,
    instead: Option<(usize, &'static str)>,
    trips: &[&str],
) -> (Vec<String>, Vec<Record>, String) {
    fs::write(folder.join("trips"), trips.join("\n")).unwrap();
    let words = ["compare"].into_iter().chain(line.split_whitespace());
    let Line { compare } = Line::try_parse_from(words).unwrap();
    let log = folder.join("log");
    fs::write(&log, "").unwrap();
    let script = |name, instead| -> (Box<dyn Library>, String) {
        (Box::new(Script { name, log: log.clone(), instead }), "1".into())
    };
    let installed = vec![script("comm-shm", None), script("one", instead), script("two", None)];
    let libraries = Libraries { installed, missing: Vec::new() };
    let mut journal = Journal::open(&folder.join("page.jsonl"), false).unwrap();
    let mut rounds_done = 0;
    let mut printed = Vec::new();
    let rounds = Rounds { patience: Duration::ZERO, ..Rounds::new(&compare, &libraries, limits(folder)) };
    rounds
        .measure(7, &mut journal, &mut printed, |_, _| {
            rounds_done += 1;
            Ok(())
        })
        .unwrap();
    assert!(rounds_done <= compare.rounds);
    let starts = fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect();
    (starts, journal.records, String::from_utf8(printed).unwrap())
}

const SHORT: &str = "--ranks 2 --collectives all_reduce,barrier --max 16 --rounds 2";

#[test]
fn all_libraries_measure_a_case_before_the_next_in_rotating_order() {
    let folder = tempfile::tempdir().unwrap();
    let (starts, records) = measure(folder.path(), SHORT, None);
    let order = [
        "limits", "comm-shm", "one", "two", "limits", "comm-shm", "one", "two", "limits", "one", "two",
        "comm-shm", "limits", "one", "two", "comm-shm",
    ];
    let names: Vec<&str> = starts.iter().map(|start| start.split(' ').next().unwrap()).collect();
    assert_eq!(names, order);
    let second = [
        "limits flag exchange",
        "comm-shm barrier 2",
        "one barrier 2",
        "two barrier 2",
        "limits flag exchange",
    ];
    assert_eq!(starts[4..9], second);
    assert_eq!(starts[9], "one all_reduce 2");
    // Two sizes and a barrier, by three libraries, twice, and a limit of each of the four cases.
    let times = records.iter().filter(|record| matches!(record, Record::Time(Time { us: 1.5, run: 7, .. })));
    assert_eq!((times.count(), records.len()), (18, 22));
}

#[test]
fn limits_are_recorded_with_the_round_and_the_case_that_they_bound() {
    let folder = tempfile::tempdir().unwrap();
    let line = SHORT.replace("all_reduce,barrier", "broadcast,barrier");
    let (_, records) = measure(folder.path(), &line, None);
    let limits = records.iter().filter_map(|record| match record {
        Record::RoundLimit(limit) => Some((limit.limit.run, limit.round, limit.case.collective)),
        _ => None,
    });
    assert_eq!(limits.collect::<Vec<_>>(), [(7, 1, Collective::Barrier), (7, 2, Collective::Barrier)]);
    assert_eq!(Journal::open(&folder.path().join("page.jsonl"), false).unwrap().records, records);
}

#[test]
fn a_library_without_a_collective_is_not_started_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let line = SHORT.replace("all_reduce", "broadcast");
    let (starts, _) = measure(folder.path(), &line, None);
    assert!(starts.len() == 12 && !starts.contains(&"two broadcast 2".to_owned()), "{starts:?}");
    assert_eq!(measure(folder.path(), &line, None).0.len(), 0);
}

#[test]
fn completed_measurements_are_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    measure(folder.path(), SHORT, None);
    assert_eq!(measure(folder.path(), SHORT, None).0.len(), 0);
    // One more round, and one more size in all of them.
    assert_eq!(
        measure(folder.path(), &format!("{SHORT} --rounds 3").replace("--rounds 2 ", ""), None).0.len(),
        8
    );
    assert_eq!(measure(folder.path(), &SHORT.replace("--max 16", "--max 64"), None).0.len(), 8);
}

#[test]
fn all_libraries_repeat_an_interrupted_case() {
    let folder = tempfile::tempdir().unwrap();
    measure(folder.path(), SHORT, None);
    let path = folder.path().join("page.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    // The last barrier of the last round, and half of the line before it.
    fs::write(&path, lines[..20].concat() + &lines[20][..10]).unwrap();
    let (starts, records) = measure(folder.path(), SHORT, None);
    assert_eq!(starts, ["limits flag exchange", "one barrier 2", "two barrier 2", "comm-shm barrier 2"]);
    assert_eq!(records.len(), 24);
}

#[test]
fn a_failed_library_keeps_its_measurements_and_is_not_started_again() {
    for (instead, reason) in [
        ("echo out of luck >&2; exit 3", "out of luck"),
        ("true", "no measurement of 16 bytes"),
        (r#"echo '{"bytes":16,"time_us":{"p50":1.5},"wrong":2}'"#, "2 elements were wrong"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let line = SHORT.replace("--rounds 2", "--rounds 1");
        let (_, records) = measure(folder.path(), &line, Some((16, instead)));
        let failures = records.iter().filter_map(|record| match record {
            Record::Failure(failure) => Some((&*failure.library, failure.case.collective, &*failure.reason)),
            _ => None,
        });
        let failures: Vec<_> = failures.collect();
        assert!(
            matches!(failures[..], [("one", Collective::AllReduce, text)] if text.contains(reason)),
            "{failures:?}"
        );
        assert_eq!(records.len(), 11);
        assert_eq!(measure(folder.path(), &line, None).0.len(), 0);
    }
}

const BARRIER: &str = "--ranks 2 --collectives barrier --rounds 1";

fn names(starts: &[String]) -> Vec<&str> {
    starts.iter().map(|start| start.split(' ').next().unwrap()).collect()
}

#[test]
fn a_library_during_which_the_machine_has_changed_measures_again() {
    let folder = tempfile::tempdir().unwrap();
    // Before the case, after the first library, after the second, and when it is looked at again.
    let trips = ["0.1", "0.12", "0.2", "0.11", "0.1", "0.1"];
    let (starts, records, printed) = measure_with(folder.path(), BARRIER, None, &trips);
    assert_eq!(names(&starts), ["limits", "comm-shm", "one", "one", "two"]);
    assert_eq!(records.len(), 5);
    assert!(!printed.contains("changed"), "{printed}");
}

#[test]
fn all_libraries_measure_again_on_a_machine_that_stays_changed() {
    let folder = tempfile::tempdir().unwrap();
    let trips = ["0.1", "0.1", "0.2", "0.2", "0.2", "0.2", "0.2", "0.2"];
    let (starts, _, printed) = measure_with(folder.path(), BARRIER, None, &trips);
    assert_eq!(names(&starts), ["limits", "comm-shm", "one", "limits", "comm-shm", "one", "two"]);
    assert!(!printed.contains("changed"), "{printed}");
}

#[test]
fn a_machine_that_changes_all_the_time_is_measured_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let trips: Vec<&str> = (0..9).map(|look| if look % 3 == 0 { "0.1" } else { "0.2" }).collect();
    let (starts, records, printed) = measure_with(folder.path(), BARRIER, None, &trips);
    let attempt = ["limits", "comm-shm"];
    assert_eq!(names(&starts), [&attempt[..], &attempt, &attempt, &attempt, &["one", "two"]].concat());
    assert!(records.iter().all(|record| !matches!(record, Record::Failure(_))));
    assert!(printed.contains("round 1, barrier of 2 ranks: the machine has changed"), "{printed}");
}

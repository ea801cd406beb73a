//! Tests of `commctl simulate`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Output};

use comm::Collective;
use serde_json::Value;

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.arg("simulate").args(args).output().unwrap()
}

#[track_caller]
fn text_of(args: &[&str]) -> String {
    let output = simulate(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    // There is no progress bar without a terminal.
    assert_eq!(stderr, "");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn lines_of(args: &[&str]) -> Vec<Value> {
    let text = text_of(&[args, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn assert_refused(args: &[&str], part: &str) {
    let output = simulate(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(part), "{stderr}");
    assert!(output.stdout.is_empty());
}

/// Links with times of whole microseconds: a byte takes 1 ns.
const EXACT: [&str; 6] = ["--alpha-us", "10", "--overhead-us", "2", "--gbps", "8"];

#[test]
fn the_table_has_a_row_per_algorithm_and_marks_the_choice() {
    let text = text_of(&[&["all_reduce", "--ranks", "8", "--bytes", "16M"], &EXACT[..]].concat());
    assert!(text.starts_with("all_reduce of 16 MiB among 8 ranks on 8 hosts\n"), "{text}");
    assert!(text.contains("latency 10 us, overhead 2 us, 8 Gbit/s"), "{text}");
    let row =
        |name: &str| text.lines().find(|line| line.split_whitespace().any(|word| word == name)).unwrap();
    assert!(row("ring").ends_with("simulation") && row("recursive_doubling").ends_with("simulation"));
    assert_eq!(text.lines().filter(|line| line.starts_with("* ") && line.ends_with("simulation")).count(), 1);
}

#[test]
fn json_has_an_object_per_line_with_exact_counts() {
    let args =
        ["all_reduce", "-n", "4", "-b", "64K", "--algorithm", "ring", "--algorithm", "recursive_doubling"];
    let lines = lines_of(&[&args, &EXACT[..]].concat());
    assert_eq!(lines.len(), 2);
    let ring = lines.iter().find(|line| line["algorithm"] == "ring").unwrap();
    assert_eq!((&ring["collective"], &ring["simulated"]), (&"all_reduce".into(), &true.into()));
    assert_eq!(
        (ring["ranks"].as_u64(), ring["bytes"].as_u64(), ring["segments"].as_u64()),
        (Some(4), Some(64 << 10), Some(1))
    );
    // Six rounds of two overheads, the latency and a quarter of the data.
    let time = 6.0 * (14e-6 + 16384e-9);
    assert!((ring["time_s"].as_f64().unwrap() / time - 1.0).abs() < 1e-9, "{ring}");
    assert_eq!((ring["messages_per_rank"].as_u64(), ring["steps_per_rank"].as_u64()), (Some(6), Some(13)));
    assert_eq!(ring["bytes_per_rank"].as_f64(), Some(6.0 * 16384.0));
    let bound = 14e-6 + 1.5 * 65536e-9;
    assert!((ring["bound_s"].as_f64().unwrap() / bound - 1.0).abs() < 1e-9, "{ring}");
    assert!(lines.iter().all(|line| line["chosen"].is_boolean()));
}

#[test]
fn closed_forms_stand_in_for_programs_that_are_too_long() {
    let args = ["all_gather", "-n", "16", "-b", "1M", "--algorithm", "ring"];
    let exact = lines_of(&args);
    let closed = lines_of(&[&args[..], &["--max-steps", "100"]].concat());
    assert_eq!((&exact[0]["simulated"], &closed[0]["simulated"]), (&true.into(), &false.into()));
    assert_eq!(closed[0]["steps_per_rank"], Value::Null);
    assert_eq!(exact[0]["messages_per_rank"], closed[0]["messages_per_rank"]);
    let ratio = closed[0]["time_s"].as_f64().unwrap() / exact[0]["time_s"].as_f64().unwrap();
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
}

#[test]
fn every_collective_can_be_simulated_from_the_last_root() {
    let makes_a_group = |collective: &Collective| {
        matches!(collective, Collective::Split | Collective::NewGroup | Collective::Duplicate)
    };
    for collective in Collective::ALL {
        if makes_a_group(&collective) {
            assert_refused(&[collective.name(), "-n", "13"], "invalid value");
            continue;
        }
        let lines = lines_of(&[collective.name(), "-n", "13", "-b", "4K", "--root", "12"]);
        assert!(!lines.is_empty());
        assert_eq!(lines.iter().filter(|line| line["chosen"] == true).count(), 1, "{collective}");
        assert!(lines.iter().all(|line| line["time_s"].as_f64().unwrap() > 0.0), "{collective}");
    }
}

#[test]
fn faster_links_within_hosts_save_time() {
    let time = |more: &[&str]| {
        let args = ["all_reduce", "-n", "8", "-b", "1M", "--ranks-per-host", "8", "--algorithm", "ring"];
        lines_of(&[&args[..], more].concat())[0]["time_s"].as_f64().unwrap()
    };
    assert!(time(&["--local-gbps", "1000", "--local-alpha-us", "1"]) < 0.5 * time(&[]));
    assert!(time(&["--reduce-gbps", "10"]) > 2.0 * time(&[]));
}

#[test]
fn the_picture_shows_every_algorithm_over_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("times.svg");
    text_of(&["all_reduce", "-n", "5", "--svg", path.to_str().unwrap()]);
    let picture = std::fs::read_to_string(path).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for text in ["all_reduce among 5 ranks", "ring", "recursive_doubling", "predicted time", "1G", "us"] {
        assert!(picture.contains(text), "{text} is missing");
    }
    // One rank takes no time, which a logarithmic axis cannot show.
    text_of(&["all_reduce", "-n", "1", "--svg", dir.path().join("one.svg").to_str().unwrap()]);
}

#[test]
fn bad_input_is_refused_with_exit_code_2() {
    assert_refused(&["all_redcue", "-n", "4"], "all_reduce, reduce, broadcast");
    assert_refused(&["allreduce", "-n", "4"], "a similar value exists: 'all_reduce'");
    assert_refused(&["all_reduce"], "--ranks");
    assert_refused(&["all_reduce", "-n", "0"], "0 is not in 1..");
    assert_refused(&["all_reduce", "-n", "4", "--bytes", "4KB"], "K, M, G or T");
    assert_refused(&["all_reduce", "-n", "4", "--gbps", "0"], "above zero");
    assert_refused(&["all_reduce", "-n", "4", "--alpha-us=-1"], "not negative");
    assert_refused(&["all_reduce", "-n", "4", "--overhead-us", "nan"], "not negative");
    assert_refused(&["all_reduce", "-n", "4", "--segment", "0"], "above zero");
    assert_refused(&["broadcast", "-n", "4", "--root", "4"], "--root 4: there are 4 ranks");
    assert_refused(
        &["all_reduce", "-n", "4", "--algorithm", "magic"],
        "no algorithm \"magic\" for all_reduce",
    );
}

#[test]
fn a_picture_that_cannot_be_written_is_reported() {
    let output = simulate(&["barrier", "-n", "2", "--svg", "/dev/null/all.svg"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot write /dev/null/all.svg"), "{stderr}");
}

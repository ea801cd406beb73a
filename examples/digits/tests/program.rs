//! Tests of the program with real processes over TCP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn scratch(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file)
}

fn digits(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_digits")).args(args).output().unwrap()
}

/// Trains with this number of ranks, and returns the output.
fn train(ranks: &str, more: &[&str]) -> String {
    let svg = scratch(&format!("loss-{ranks}-{}.svg", more.concat().replace('/', "-")));
    let args = [&["-n", ranks, "--svg", svg.to_str().unwrap()], more].concat();
    let output = digits(&args);
    let (printed, complaints) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{printed}\n{complaints}");
    assert_eq!(complaints, "", "a progress bar without a terminal, or a warning");
    assert!(fs::read_to_string(&svg).unwrap().trim_end().ends_with("</svg>"));
    printed
}

/// Returns the accuracy of the last two lines, which scripts parse.
fn accuracy(printed: &str) -> f64 {
    let lines: Vec<&str> = printed.lines().collect();
    let [.., accuracy, replicas] = lines[..] else { panic!("{printed}") };
    assert_eq!(replicas, "replicas bit-identical: yes");
    let number = accuracy.strip_prefix("held-out accuracy ").unwrap();
    assert_eq!(number.len(), "0.9694".len());
    number.parse().unwrap()
}

#[test]
fn every_world_learns_and_keeps_its_replicas_equal() {
    for ranks in ["1", "2", "3", "4", "8"] {
        let printed = train(ranks, &[]);
        assert!(accuracy(&printed) >= 0.95, "{printed}");
    }
}

#[test]
fn the_other_optimizer_and_number_type_learn_too() {
    assert!(accuracy(&train("2", &["--optimizer", "adamw", "--dtype", "f64"])) >= 0.95);
}

/// Returns accuracy and bytes of both kinds of training.
fn comparison(printed: &str) -> [(f64, f64); 2] {
    let row = |name: &str| {
        let line = printed.lines().find(|line| line.starts_with(name)).unwrap();
        let [.., accuracy, sent, unit] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let factor = match unit {
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            other => panic!("{other}"),
        };
        (accuracy.parse().unwrap(), sent.parse::<f64>().unwrap() * factor)
    };
    [row("averaged gradients"), row("local training")]
}

#[test]
fn local_training_learns_with_a_hundredth_of_the_bytes() {
    let printed = train("4", &["--diloco", "20", "--fragments", "4", "--delay", "2", "--codec", "int4"]);
    let [(averaged, all), (local, few)] = comparison(&printed);
    assert_eq!(local, accuracy(&printed));
    assert!(averaged >= 0.95 && local >= 0.95, "{printed}");
    assert!(few > 0.0 && few < all / 100.0, "{printed}");
    // About a tenth of the bytes, because ranks synchronize once in ten steps and at the end.
    let printed = train("2", &["--diloco", "10", "--epochs", "5"]);
    let [(_, all), (_, few)] = comparison(&printed);
    assert!((0.1..0.11).contains(&(few / all)), "{printed}");
}

#[test]
fn the_table_has_a_row_per_epoch() {
    let printed = train("2", &["--epochs", "3"]);
    let heading = printed.lines().position(|line| line.starts_with("epoch")).unwrap();
    for (row, line) in printed.lines().skip(heading + 1).take(3).enumerate() {
        let columns: Vec<f64> = line.split_whitespace().map(|column| column.parse().unwrap()).collect();
        let [epoch, loss, accuracy, images_per_second, millis, communicating, waiting] = columns[..] else {
            panic!("{line}")
        };
        assert_eq!(epoch, (row + 1) as f64);
        assert!(loss > 0.0 && (0.0..=1.0).contains(&accuracy) && images_per_second > 0.0);
        assert!(millis > 0.0 && communicating > 0.0 && (0.0..100.0).contains(&waiting));
    }
}

/// Returns epoch, loss and accuracy of every row.
fn rows(printed: &str) -> Vec<String> {
    let columns = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    printed.lines().filter(|line| line.starts_with(' ')).map(columns).collect()
}

#[test]
fn equal_runs_end_alike() {
    let run = || rows(&train("3", &["--epochs", "2", "--seed", "7"]));
    let first = run();
    assert_eq!((first.len(), &first), (2, &run()));
}

#[test]
fn sharded_state_gives_the_results_of_whole_state() {
    for optimizer in ["sgd", "adamw"] {
        // The sum of two numbers is the same in both orders.
        let run = |more: &[&str]| {
            rows(&train("2", &[&["--epochs", "3", "--seed", "7", "--optimizer", optimizer], more].concat()))
        };
        let whole = run(&[]);
        assert_eq!((whole.len(), &whole), (3, &run(&["--zero"])));
    }
}

#[test]
fn a_trace_shows_buckets_in_flight_before_backward_ends() {
    let path = scratch("trace.json");
    train("2", &["--epochs", "2", "--trace", path.to_str().unwrap()]);
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..2 {
        let of_rank = || events.iter().filter(|event| event["pid"] == rank);
        let overlapping = of_rank().filter(|event| event["args"]["began_before_backward_ended"] == true);
        assert!(overlapping.count() > 0, "rank {rank} communicated only after backward");
        let last_bucket = of_rank().filter(|event| event["name"] == "bucket 2");
        assert!(last_bucket.count() > 0, "there are fewer than three buckets");
    }
}

#[test]
fn a_batch_that_leaves_no_full_step_is_refused() {
    let output = digits(&["-n", "2", "--batch-size", "1000"]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("2 ranks x 1000 images"), "{complaint}");
}

#[test]
fn the_other_ranks_learn_on_after_some_are_killed_and_others_replace_them() {
    replace_every_rank(&[]);
}

#[test]
fn ranks_with_sharded_state_are_killed_and_replaced_without_a_checkpoint() {
    replace_every_rank(&["--zero", "--optimizer", "adamw"]);
}

/// Kills each of four ranks, after the one before was replaced.
fn replace_every_rank(more: &[&str]) {
    let svg = scratch(&format!("loss-elastic{}.svg", more.concat()));
    let args = [&["-n", "4", "--elastic", "--epochs", "500", "--svg", svg.to_str().unwrap()], more].concat();
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_digits"));
    let mut launcher = launcher.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.by_ref().find(|line| line.starts_with("    2 ")).unwrap();
    // In the end every process is a replacement.
    for victim in 0..4 {
        kill_process(rank_of(launcher.id(), victim), Signal::KILL).unwrap();
        let regained = lines.by_ref().find(|line| line == "admitted 1, so that 4 ranks train");
        assert!(regained.is_some(), "after rank {victim} was killed");
    }
    let printed = lines.collect::<Vec<_>>().join("\n");
    let output = launcher.wait_with_output().unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}\n{complaints}");
    assert!(accuracy(&printed) >= 0.95, "{printed}");
    assert!(printed.contains("replicas bit-identical: yes"), "{printed}");
    for victim in 0..4 {
        let killed = complaints.lines().any(|line| line.starts_with(&format!("digits: rank {victim} (pid ")));
        assert!(killed, "{complaints}");
    }
}

/// Returns the process that a launcher has started for a rank.
fn rank_of(launcher: u32, rank: usize) -> Pid {
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
    let is_rank = |pid: &str| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == format!("RANK={rank}").as_bytes())
    };
    let pid = children.split_whitespace().find(|pid| is_rank(pid)).unwrap();
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}

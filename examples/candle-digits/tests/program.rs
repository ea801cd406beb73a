//! Tests of the program with real processes, over shared memory and TCP.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn candle_digits(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_candle-digits")).args(args).output().unwrap()
}

#[test]
fn four_processes_learn_and_keep_their_replicas_equal() {
    let output = candle_digits(&["-n", "4"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}\n{complaints}");
    assert_eq!(complaints, "");
    assert!(!printed.contains("warning"), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    let [.., accuracy, replicas] = lines[..] else { panic!("{printed}") };
    assert_eq!(replicas, "replicas bit-identical: yes");
    let accuracy: f64 = accuracy.strip_prefix("held-out accuracy ").unwrap().parse().unwrap();
    assert!(accuracy >= 0.95, "{printed}");
    assert_eq!(lines.len(), 1 + 15 + 2);
}

#[test]
fn a_batch_that_leaves_no_full_step_is_refused() {
    let output = candle_digits(&["-n", "2", "--batch-size", "1000"]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("2 ranks x 1000 images"), "{complaint}");
}

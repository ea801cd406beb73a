//! The software for GPUs, with the emulated driver and NCCL.

use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use serde_json::Value;

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.args(["doctor", "-n", "1"]).args(arguments);
    command
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn the_driver_and_nccl_are_found_with_their_versions() {
    let emulator = gpu_emu::Control::load().unwrap().path();
    let folder = tempfile::tempdir().unwrap();
    symlink(emulator, folder.path().join("libcuda.so")).unwrap();
    let found = |arguments| {
        let mut command = doctor(arguments);
        command.env("LD_LIBRARY_PATH", folder.path()).env("COMM_NCCL_PATH", emulator).output().unwrap()
    };
    let output = found(&["--json"]);
    let report: Value = serde_json::from_str(text(&output)).unwrap();
    let gpu = &report["hosts"][0]["gpu"];
    let driver = &gpu["driver"]["Ok"];
    assert!(driver["cuda"].as_str().unwrap().split('.').all(|part| part.parse::<u32>().is_ok()), "{gpu}");
    assert!(!driver["devices"].as_array().unwrap().is_empty(), "{gpu}");
    assert_eq!(gpu["nccl"]["Ok"]["path"], emulator.to_str().unwrap(), "{gpu}");
    let version = gpu["nccl"]["Ok"]["version"].as_str().unwrap();
    let row = format!("  {:<24}{version}, {}", "NCCL", emulator.display());
    let output = found(&[]);
    assert!(text(&output).lines().any(|line| line == row), "{}", text(&output));
    assert!(text(&output).contains("\n  CUDA driver             for CUDA "), "{}", text(&output));
}

#[test]
fn a_library_that_a_variable_names_and_that_is_not_there_is_a_problem() {
    let output = doctor(&["--json"]).env("COMM_NCCL_PATH", "/nowhere/libnccl.so.2").output().unwrap();
    let report: Value = serde_json::from_str(text(&output)).unwrap();
    let problems = report["problems"].as_array().unwrap();
    let is_named = |problem: &&Value| {
        let text = problem["text"].as_str().unwrap();
        text.contains(": NCCL cannot be used: ") && text.contains("/nowhere/libnccl.so.2 (COMM_NCCL_PATH)")
    };
    let problem = problems.iter().find(is_named).unwrap();
    assert!(problem["remedy"].as_str().unwrap().contains("COMM_NCCL_PATH"), "{problem}");
}

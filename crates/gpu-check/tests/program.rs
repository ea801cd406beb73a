//! Tests of the program for real devices.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

use gpu_emu::Control;

fn program(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(arguments).arg("--out").arg(folder).envs(environment.iter().copied());
    command.output().unwrap()
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn the_emulator_is_refused_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let emulator = Control::load().unwrap().path().display().to_string();
    let copies = ["libcuda-gpu_emu.so", "libcuda.so.1"].map(|name| folder.path().join(name));
    for copy in &copies {
        std::fs::copy(&emulator, copy).unwrap();
    }
    for path in [emulator.as_str(), copies[0].to_str().unwrap(), copies[1].to_str().unwrap()] {
        // The file replaces the driver by name, and NCCL by path.
        let environment = [("LD_PRELOAD", path), ("COMM_NCCL_PATH", path)];
        let output = program(folder.path(), &[], &environment);
        assert!(!output.status.success());
        assert!(text_of(&output).contains("is an emulator, not a GPU"), "{}", text_of(&output));
    }
    assert!(!folder.path().join("gpu-report.md").exists(), "the report does not exist");
}

#[test]
fn without_a_library_no_report_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(folder.path(), &[], &[("COMM_NCCL_PATH", "/no/such/libnccl.so.2")]);
    assert!(!output.status.success());
    assert!(text_of(&output).contains("/no/such/libnccl.so.2"), "{}", text_of(&output));
    assert!(!folder.path().join("gpu-report.md").exists());
}

#[test]
fn a_page_is_written_from_the_journal_of_another_machine() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal.jsonl");
    let line = r#"{"Case":{"case":"split","ranks":2,"verdict":"Failed","message":"no","seconds":1.5}}"#;
    std::fs::write(&journal, format!("{line}\n")).unwrap();
    let output = program(folder.path(), &["--from", journal.to_str().unwrap()], &[]);
    assert!(!output.status.success(), "a case failed");
    let page = std::fs::read_to_string(folder.path().join("gpu-report.md")).unwrap();
    assert!(page.contains("| 2 | FAILED: no | 1.50 |"), "{page}");
}

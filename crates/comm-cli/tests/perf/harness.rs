//! Runs `commctl perf` and parses its output.

use std::process::{Command, Output};

/// The options of short measurements.
const SHORT: [&str; 4] = ["--samples", "3", "--sample-ms", "0.2"];

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Returns `commctl` with these arguments, without the variables of a launch.
pub(crate) fn commctl(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.args(words);
    for name in [
        "RANK",
        "WORLD_SIZE",
        "COMM_LINKS",
        "COMM_SECRET",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn end(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("commctl starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// Runs `commctl perf LINE` with short samples.
pub(crate) fn perf(line: &str) -> Ended {
    let words: Vec<&str> = ["perf"].into_iter().chain(line.split_whitespace()).chain(SHORT).collect();
    end(&mut commctl(&words))
}

/// Returns the output of a successful run.
#[track_caller]
pub(crate) fn printed(line: &str) -> String {
    let ended = perf(line);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "", "{line}");
    ended.stdout
}

/// Splits the rows of a table into words.
pub(crate) fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

//! Tests of the commands that show a job to its user, with real processes: this program starts
//! itself as the ranks of `commctl run`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

mod hosts;
#[path = "../../../comm/tests/common/hosts.rs"]
mod network;
mod top;
mod trace;
#[path = "../common/wait.rs"]
mod wait;

use std::process::{Command, Stdio};

/// The variable that selects the program of a rank.
const ROLE: &str = "OBSERVED_ROLE";

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    match std::env::var(ROLE).as_deref() {
        Ok("slow rank") => trace::slow_rank(),
        Ok("calls") => top::make_calls(),
        Ok(role) => unreachable!("no such role: {role}"),
        Err(_) => {}
    }
}

fn commctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.env_remove("COMM_SECRET");
    command
}

/// Appends the arguments with which this program is a rank.
fn as_rank(command: &mut Command, role: &str) {
    command.arg(std::env::current_exe().unwrap());
    command.args(["rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(Stdio::null());
}

/// Returns a command that runs this program as the ranks of a role.
fn run(ranks: usize, role: &str) -> Command {
    let mut command = commctl();
    command.args(["run", "-n", &ranks.to_string(), "--"]);
    as_rank(&mut command, role);
    command
}

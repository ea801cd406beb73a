//! Injects faults into real jobs and hosts, and compares the first line that a user sees with
//! docs/faults.md. This program starts itself as the ranks.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod calls;
mod hosts;
mod links;
#[path = "../../../comm/tests/common/hosts.rs"]
mod network;
mod page;
#[path = "../../../comm/tests/common/port.rs"]
mod port;
mod ranks;
mod start;
mod table;
mod top;
#[path = "../common/wait.rs"]
mod wait;

use std::process::Command;

fn commctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
    command.env_remove("COMM_SECRET");
    command
}

//! Ranks that torchrun starts, and that connect through the store of its agent. Not run by default:
//!
//! ```sh
//! COMM_TEST_PYTHON=path/to/python cargo test -p comm-cli --test torchrun -- --ignored
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// Measures two sizes, for which rank 0 prints a line each.
const MEASURE: &str =
    r#""$COMMCTL" perf all_reduce --min 4 --max 64K --factor 16384 --samples 3 --check --json"#;

/// An agent that runs a shell script in each worker. `share`: whether it shares its store.
fn agent(workers: &str, options: &[&str], share: bool, script: &str) -> Child {
    Command::new(std::env::var("COMM_TEST_PYTHON").unwrap())
        .args(["-m", "torch.distributed.run", "--nproc-per-node", workers])
        .args(options)
        .args(["--no-python", "sh", "-c", script])
        .env("COMMCTL", env!("CARGO_BIN_EXE_commctl"))
        .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", if share { "0" } else { "1" })
        .env("COMM_RENDEZVOUS_TIMEOUT_S", "60")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the output of the workers of an agent after its success.
fn printed(agent: Child) -> String {
    let run = agent.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    String::from_utf8(run.stdout).unwrap()
}

/// Runs a shell script in each of the four workers of one agent, and returns their output.
fn torchrun(options: &[&str], share: bool, script: &str) -> String {
    printed(agent("4", options, share, script))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const STANDALONE: [&str; 1] = ["--standalone"];

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn the_workers_of_torchrun_connect_through_its_agents_store() {
    let free = free_port().to_string();
    let fixed = ["--master-addr", "127.0.0.1", "--master-port", &free];
    for options in [&STANDALONE[..], &fixed] {
        let script = format!("echo store: $TORCHELASTIC_USE_AGENT_STORE; {MEASURE}");
        let printed = torchrun(options, true, &script);
        assert_eq!(printed.matches("store: True").count(), 4, "{printed}");
        assert_eq!(printed.matches(r#""ranks":4"#).count(), 2, "{printed}");
    }
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn restarted_workers_reconnect() {
    let options = [&STANDALONE[..], &["--max-restarts", "1", "--monitor-interval", "0.2"]].concat();
    for share in [true, false] {
        // One worker fails after all have connected.
        let script = format!("{MEASURE} && test $TORCHELASTIC_RESTART_COUNT = 1");
        let printed = torchrun(&options, share, &script);
        assert_eq!(printed.matches(r#""ranks":4"#).count(), 4, "{printed}");
    }
}

#[test]
#[ignore = "needs PyTorch, in the python that COMM_TEST_PYTHON names"]
fn workers_of_two_agents_reconnect_after_a_failure() {
    for share in [true, false] {
        let endpoint = format!("127.0.0.1:{}", free_port());
        let two = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint];
        let options = [&two[..], &["--max-restarts", "3", "--monitor-interval", "0.2"]].concat();
        // The worker that fails counts the restart of its agent; those of the other agent restart
        // without one.
        let fails_once = "test $RANK != 3 || test $TORCHELASTIC_RESTART_COUNT != 0";
        let script = format!(
            "echo restarts: $TORCHELASTIC_RESTART_COUNT; {MEASURE} && sleep 1 && {fails_once} && sleep 2"
        );
        let agents = [(); 2].map(|()| agent("2", &options, share, &script));
        let printed: String = agents.into_iter().map(printed).collect();
        assert_eq!(printed.matches(r#""ranks":4"#).count(), 4, "{printed}");
        assert!(printed.contains("restarts: 0") && printed.contains("restarts: 1"), "{printed}");
    }
}

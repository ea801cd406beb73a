//! Test of the example that loses a rank and regains it, with real processes.
//!
//! The example is a module of this program, so that cargo builds what is tested. The test starts
//! this program as the ranks, which call `main` of the example.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../examples/elastic.rs"]
mod elastic;

use std::fs;

use comm_cli::launch::{Launch, RankFailure};

/// The variable that is set for ranks.
const ROLE: &str = "EXAMPLE_RANK";

#[test]
fn a_lost_rank_is_regained_and_the_bits_are_those_of_one_process() {
    if std::env::var_os(ROLE).is_some() {
        return elastic::main().unwrap();
    }
    let logs = tempfile::tempdir().unwrap();
    let launch = Launch::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_lost_rank_is_regained_and_the_bits_are_those_of_one_process", "--nocapture"])
        .env(ROLE, "1")
        .ranks(2)
        .ranks_min(1)
        .ranks_max(2)
        .max_restarts(1)
        .on_loss(|failure: &RankFailure| assert_eq!(failure.rank, 1))
        .log_dir(logs.path());
    let ended = launch.run();
    let printed = fs::read_to_string(logs.path().join("0/rank-0/stdout.log")).unwrap();
    assert!(ended.is_ok(), "{ended:?}: {printed}");
    assert!(printed.contains("rank 1 was lost") && printed.contains("ranks [0] go on"), "{printed}");
    assert!(
        printed.contains("60 steps are complete, the last one with 2 ranks; the bits are those"),
        "{printed}"
    );
}

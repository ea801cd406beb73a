//! Tests of the examples of the facade, under `commctl run`.
//!
//! The examples are modules of this program, so that cargo builds what is tested whichever tests
//! are selected. Each test starts this program as the ranks, which call `main` of the example.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../comm/examples/all_reduce.rs"]
mod all_reduce;
#[path = "../../comm/examples/elastic.rs"]
mod elastic;
#[path = "../../comm/examples/halo_exchange.rs"]
mod halo_exchange;
#[path = "../../comm/examples/kmeans.rs"]
mod kmeans;
#[path = "../../comm/examples/object_broadcast.rs"]
mod object_broadcast;
#[path = "../../comm/examples/overlap.rs"]
mod overlap;
#[path = "../../comm/examples/sample_sort.rs"]
mod sample_sort;
#[path = "../../comm/examples/summa.rs"]
mod summa;

use std::error::Error;
use std::process::Command;

/// The variable that is set for ranks.
const ROLE: &str = "EXAMPLE_RANK";

/// Runs an example from the test of this name, once with each list of options of `commctl run`, and
/// checks that it succeeds and prints the texts. In a rank, calls `main`.
#[track_caller]
fn check<E: Into<Box<dyn Error>>>(test: &str, main: fn() -> Result<(), E>, runs: &[(&str, &[&str])]) {
    if std::env::var_os(ROLE).is_some() {
        return main().unwrap_or_else(|error| panic!("{:?}", error.into()));
    }
    for (options, texts) in runs {
        let mut command = Command::new(env!("CARGO_BIN_EXE_commctl"));
        command.env_remove("COMM_SECRET").env(ROLE, "1");
        command.arg("run").args(options.split_whitespace()).arg("--").arg(std::env::current_exe().unwrap());
        let output = command.args(["--exact", test, "--nocapture"]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {printed}\n{complaints}");
        for text in *texts {
            assert!(printed.contains(text), "{options}: {text:?} is not in {printed}");
        }
    }
}

#[test]
fn all_reduce_gives_exact_sums_and_averages() {
    check(
        "all_reduce_gives_exact_sums_and_averages",
        all_reduce::main,
        &[
            (
                "-n 1",
                &[
                    "f32: sums and averages of 1 ranks are exact",
                    "bf16: sums and averages of 1 ranks are exact",
                ],
            ),
            (
                "-n 4",
                &[
                    "f32: sums and averages of 4 ranks are exact",
                    "bf16: sums and averages of 4 ranks are exact",
                ],
            ),
        ],
    );
}

#[test]
fn object_broadcast_sends_and_gathers_structs() {
    check(
        "object_broadcast_sends_and_gathers_structs",
        object_broadcast::main,
        &[
            ("-n 1", &["1 ranks got the settings and returned 1 losses"]),
            ("-n 4", &["4 ranks got the settings and returned 10 losses"]),
        ],
    );
}

#[test]
fn summa_gives_the_product_of_one_rank() {
    check(
        "summa_gives_the_product_of_one_rank",
        summa::main,
        &[
            ("-n 1", &["on a 1x1 grid is exact"]),
            ("-n 4", &["on a 2x2 grid is exact"]),
            ("-n 6", &["on a 2x3 grid is exact"]),
        ],
    );
}

#[test]
fn halo_exchange_gives_the_values_of_one_rank() {
    check(
        "halo_exchange_gives_the_values_of_one_rank",
        halo_exchange::main,
        &[
            ("-n 1", &["on a 1x1 grid give the values of one rank"]),
            ("-n 4", &["on a 2x2 grid give the values of one rank"]),
            ("-n 6", &["on a 2x3 grid give the values of one rank"]),
        ],
    );
}

#[test]
fn kmeans_finds_the_centers_of_one_rank() {
    check(
        "kmeans_finds_the_centers_of_one_rank",
        kmeans::main,
        &[
            ("-n 1", &["1 ranks find the centers of one rank"]),
            ("-n 4", &["4 ranks find the centers of one rank"]),
        ],
    );
}

#[test]
fn sample_sort_sorts_all_elements() {
    check(
        "sample_sort_sorts_all_elements",
        sample_sort::main,
        &[
            ("-n 1", &["20000 elements are sorted on 1 ranks"]),
            ("-n 4", &["80042 elements are sorted on 4 ranks"]),
        ],
    );
}

#[test]
fn overlap_gives_the_results_of_calls_in_turn() {
    check(
        "overlap_gives_the_results_of_calls_in_turn",
        overlap::main,
        &[("-n 1", &[" ms, saved "]), ("-n 4", &[" ms, saved "])],
    );
}

#[test]
fn elastic_loses_a_rank_and_regains_it() {
    check(
        "elastic_loses_a_rank_and_regains_it",
        elastic::main,
        &[
            ("-n 1", &["100 steps are complete, the last one with 1 ranks"]),
            ("-n 3 --elastic 2:3 --max-restarts 1", &["ranks [0, 1] go on", "the last one with 3 ranks"]),
            ("-n 4 --elastic 2:4 --max-restarts 1", &["ranks [0, 1, 2] go on", "the last one with 4 ranks"]),
        ],
    );
}

//! Training with LightGBM on real processes. `COMM_TEST_LIGHTGBM` is the folder of its Python
//! package, which `cargo xtask lightgbm-fetch` installs. Without it, the tests print that they test
//! nothing, and fail if `COMM_REQUIRE_LIGHTGBM=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lightgbm");
const ABORTED: i32 = 6;
const KILLED: i32 = 9;

/// Returns the folder of the packages, unless nothing is tested.
fn packages() -> Option<PathBuf> {
    let folder = env::var_os("COMM_TEST_LIGHTGBM").map(PathBuf::from);
    if folder.is_none() {
        let message = "not tested: set COMM_TEST_LIGHTGBM to what `cargo xtask lightgbm-fetch` prints";
        assert_ne!(env::var("COMM_REQUIRE_LIGHTGBM").as_deref(), Ok("1"), "{message}");
        // The test harness shows the output of failed tests only.
        stderr().write_all(format!("{message}\n").as_bytes()).unwrap();
    }
    folder
}

fn library(packages: &Path) -> PathBuf {
    packages.join("lightgbm/lib/lib_lightgbm.so")
}

/// Runs the program, which starts its own ranks.
fn run(packages: &Path, args: &[&str]) -> Output {
    Command::new(PROGRAM).arg("--library").arg(library(packages)).args(args).output().unwrap()
}

fn printed(output: &Output) -> String {
    let (printed, complaints) = (&output.stdout, &output.stderr);
    format!("{}\n{}", String::from_utf8_lossy(printed), String::from_utf8_lossy(complaints))
}

/// Starts ranks of a program, which find each other through a folder.
fn start(ranks: usize, folder: &Path, command: impl Fn() -> Command) -> Vec<Child> {
    let start = |rank: usize| {
        command()
            .env("COMM_RENDEZVOUS", format!("file://{}", folder.display()))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..ranks).map(start).collect()
}

#[test]
fn ranks_train_the_same_trees_as_over_the_sockets_of_lightgbm() {
    let Some(packages) = packages() else { return };
    let small = ["--rows", "6000", "--features", "8", "--trees", "12", "--rounds", "1"];
    for (ranks, learner) in [("2", "data"), ("3", "data"), ("2", "voting")] {
        let output = run(&packages, &[&["-n", ranks, "--learner", learner], &small[..]].concat());
        let printed = printed(&output);
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains(&format!("trees equal on {ranks} ranks: yes")), "{printed}");
        // The sum of two floats is the same in either order, that of three is not.
        if ranks == "2" {
            assert!(printed.contains("trees equal to those over LightGBM's sockets: yes"), "{printed}");
        }
        let accuracy = printed.lines().find_map(|line| line.strip_prefix("held-out accuracy "));
        assert!(accuracy.unwrap().parse::<f64>().unwrap() > 0.75, "{printed}");
    }
}

#[test]
fn the_others_name_a_rank_that_is_killed_in_training() {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = start(3, folder.path(), || {
        let mut command = Command::new(PROGRAM);
        command.arg("--library").arg(library(&packages)).args(["--rows", "3000", "--trees", "1000000"]);
        command
    });
    let mut lines = BufReader::new(ranks[0].stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "1 of 1000000 trees");
    ranks[1].kill().unwrap();
    for (rank, mut child) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let mut complaints = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(ABORTED), "{complaints}");
        let start = format!("comm_lightgbm: rank {rank}: the ");
        assert!(complaints.contains(&start) && complaints.contains("rank 1 was lost"), "{complaints}");
    }
}

/// Returns a command that runs Python with the packages and the module `comm_lightgbm`, whose
/// library was built for these tests, next to them.
fn python(packages: &Path) -> Command {
    let example = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", env::join_paths([example, packages]).unwrap());
    python.env("COMM_LIGHTGBM_LIBRARY", deps.join("libcomm_lightgbm.so"));
    python
}

/// Trains without end. Rank 1 does in the third iteration what its argument says.
const TRAIN_UNTIL_RANK_1_ENDS: &str = r#"
import os, signal, sys
import lightgbm, numpy
import comm_lightgbm

def end_rank_1(environment):
    if network.rank == 1 and environment.iteration == 3:
        if sys.argv[1] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no more rows")

with comm_lightgbm.connect() as network:
    random = numpy.random.default_rng(network.rank)
    rows = random.uniform(-1, 1, (1000, 4))
    data = lightgbm.Dataset(rows, rows[:, 0] > rows[:, 1] * rows[:, 2])
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, **network.parameters}
    lightgbm.train(parameters, data, num_boost_round=1_000_000, callbacks=[end_rank_1])
"#;

/// Asserts that the program ends on all ranks once rank 1 does this: on rank 1 as stated, and on
/// the others by SIGABRT, with a message that contains the cause.
fn assert_all_end(does: &str, of_rank_1: impl Fn(&Output) -> bool, cause: &str) {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ranks = start(3, folder.path(), || {
        let mut python = python(&packages);
        python.args(["-c", TRAIN_UNTIL_RANK_1_ENDS, does]);
        python
    });
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let printed = printed(&output);
        if rank == 1 {
            assert!(of_rank_1(&output), "{printed}");
        } else {
            assert_eq!(output.status.signal(), Some(ABORTED), "{printed}");
            let start = format!("comm_lightgbm: rank {rank}: the ");
            assert!(printed.contains(&start) && printed.contains(cause), "{printed}");
        }
    }
}

#[test]
fn python_names_a_rank_that_is_killed_in_training() {
    assert_all_end("die", |output| output.status.signal() == Some(KILLED), "rank 1 was lost");
}

#[test]
fn python_names_a_rank_whose_program_fails_and_its_error() {
    let failed = |output: &Output| output.status.code() == Some(1) && printed(output).contains("ValueError");
    assert_all_end("raise", failed, "aborted by rank 1: no more rows");
}

#[test]
fn a_file_that_is_not_lightgbm_is_an_error() {
    let output = Command::new(PROGRAM).args(["-n", "1", "--library", "/nowhere.so"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = printed(&output);
    assert!(printed.contains("cannot load LightGBM from /nowhere.so"), "{printed}");
}

#[test]
fn python_trains_the_same_trees_on_all_ranks() {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ranks = start(2, folder.path(), || {
        let mut python = python(&packages);
        python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("train.py"));
        python
    });
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let lines: Vec<_> = outputs.iter().map(printed).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{lines:?}");
    let results: Vec<_> = lines.iter().map(|line| line.split_once("held-out accuracy ").unwrap().1).collect();
    assert_eq!(results[0], results[1]);
    let accuracy: f64 = results[0].split(',').next().unwrap().parse().unwrap();
    assert!(accuracy > 0.8, "{accuracy}");
}

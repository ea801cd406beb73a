//! Starts the tests of ranks under `mpirun`.

use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};

use crate::ranks::{ALONE, LAUNCHED};

/// The time after which a launch has hung, in seconds.
const LIMIT_S: &str = "900";

/// The exit code of `timeout` after a launch that has hung.
const TIMED_OUT: i32 = 124;

/// One launch at a time: ranks poll, so that more of them slow each other down.
static TURN: Mutex<()> = Mutex::new(());

/// Returns the launcher that belongs to `mpicc`, or to the compiler that `MPICC` names.
fn mpirun() -> String {
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    std::env::var("MPIRUN").unwrap_or_else(|_| mpicc.replace("mpicc", "mpirun"))
}

/// The end of a launch.
struct Ended {
    status: ExitStatus,
    /// The output of each rank.
    outputs: Vec<String>,
}

/// Runs tests of this program on this number of ranks. `alone` is a test that needs a process of
/// its own.
fn launch(ranks: usize, alone: Option<&str>) -> Ended {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.arg(LIMIT_S).arg(mpirun()).args(["-n", &ranks.to_string()]);
    // A launcher mixes the lines of ranks, so each writes to a file of its own.
    command.args(["sh", "-c", r#"exec "$@" >"$0/$$" 2>&1"#]).arg(folder.path());
    command.arg(std::env::current_exe().unwrap()).args(["--nocapture", "--test-threads=1"]);
    match alone {
        None => command.arg("ranks::together::"),
        Some(name) => command.args(["--exact", &format!("ranks::alone::{name}")]).env(ALONE, name),
    };
    // Open MPI refuses to run as root, and more ranks than processors, unless it is told to.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ] {
        command.env(name, value);
    }
    let status = command.env(LAUNCHED, ranks.to_string()).status().unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap();
    let outputs = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    Ended { status, outputs }
}

#[track_caller]
fn assert_passes(ranks: usize, alone: Option<&str>) {
    let Ended { status, outputs } = launch(ranks, alone);
    let passed = outputs.iter().filter(|output| output.contains("test result: ok. ")).count();
    let empty = outputs.iter().filter(|output| output.contains(" 0 passed")).count();
    assert!(
        status.success() && (passed, empty) == (ranks, 0),
        "{ranks} ranks: {status}\n{}",
        outputs.join("\n")
    );
}

#[test]
fn one_rank_passes() {
    assert_passes(1, None);
}

#[test]
fn two_ranks_pass() {
    assert_passes(2, None);
}

#[test]
fn three_ranks_pass() {
    assert_passes(3, None);
}

#[test]
fn four_ranks_pass() {
    assert_passes(4, None);
}

#[test]
fn a_program_may_initialize_and_finalize_mpi_itself() {
    assert_passes(2, Some("the_program_initializes_mpi"));
}

#[test]
fn an_mpi_for_one_thread_is_refused() {
    assert_passes(1, Some("an_mpi_for_one_thread_is_refused"));
}

#[test]
fn threads_take_turns_if_mpi_requires_it() {
    assert_passes(2, Some("threads_take_turns_if_mpi_requires_it"));
}

#[test]
fn a_timeout_on_borrowed_memory_ends_the_job() {
    let Ended { status, outputs } = launch(2, Some("a_timeout_on_borrowed_memory_ends_the_job"));
    assert!(!status.success() && status.code() != Some(TIMED_OUT), "{status}: {outputs:?}");
    assert!(outputs.iter().any(|output| output.contains("the call begins")), "{outputs:?}");
    assert!(!outputs.iter().any(|output| output.contains("the call returned")), "{outputs:?}");
}

#[test]
fn processes_exit_although_a_call_has_timed_out() {
    assert_passes(2, Some("processes_exit_although_a_call_has_timed_out"));
}

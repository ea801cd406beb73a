//! Tests with ranks that communicate. The test program re-executes itself; each rank runs one of
//! the tests below.

use std::env;
use std::time::Instant;

use rustix::process::{Signal, getpid, kill_process};

use crate::harness::{Ended, PROMISED, commctl, start};

/// Set in the environment of ranks.
pub(crate) const ROLE: &str = "COMM_CLI_TEST_RANK";

fn is_rank() -> bool {
    env::var_os(ROLE).is_some()
}

/// Runs one of these tests as several ranks.
fn run_as_ranks(ranks: &str, test: &str) -> Ended {
    run_with(&["-n", ranks], test)
}

/// Runs one of these tests as several ranks, with these options of the launcher.
fn run_with(options: &[&str], test: &str) -> Ended {
    let program = env::current_exe().expect("this program");
    let mut launched = start(|_| {
        let mut command = commctl();
        command.arg("run").args(options).args(["--tag-output", "--"]).arg(program);
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "1");
        command
    });
    launched.end()
}

#[test]
fn ranks_connect_and_gather() {
    if !is_rank() {
        let ended = run_as_ranks("3", "collectives::ranks_connect_and_gather");
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        return;
    }
    let comm = comm::init().expect("the other ranks");
    let mut ranks = [u64::MAX; 3];
    comm.all_gather(&[comm.rank() as u64], &mut ranks).expect("what each rank contributes");
    assert_eq!(ranks, [0, 1, 2]);
}

const WITH_TLS: [&str; 6] = ["-n", "3", "--env", "COMM_TLS=1", "--env", "COMM_TRANSPORT=tcp"];

#[cfg(feature = "tls")]
#[test]
fn ranks_and_the_store_of_the_launcher_use_tls() {
    if !is_rank() {
        let ended = run_with(&WITH_TLS, "collectives::ranks_and_the_store_of_the_launcher_use_tls");
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        return;
    }
    assert!(comm::Config::from_env().expect("variables").tcp.tls.is_some());
    let comm = comm::init().expect("the other ranks");
    let mut ranks = [u64::MAX; 3];
    comm.all_gather(&[comm.rank() as u64], &mut ranks).expect("what each rank contributes");
    assert_eq!(ranks, [0, 1, 2]);
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_launcher_without_tls_says_so() {
    let ended = run_with(&WITH_TLS, "no test");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.message().contains("COMM_TLS") && ended.message().contains("`tls`"), "{ended:?}");
}

#[test]
fn a_rank_that_dies_in_a_collective_is_reported() {
    if !is_rank() {
        let started = Instant::now();
        let ended = run_as_ranks("4", "collectives::a_rank_that_dies_in_a_collective_is_reported");
        assert!(started.elapsed() < 2 * PROMISED, "{:?}", started.elapsed());
        assert!(ended.message().starts_with("commctl: rank 2 "), "{ended:?}");
        assert!(ended.message().ends_with("was killed by SIGKILL"), "{ended:?}");
        return;
    }
    let comm = comm::init().expect("the other ranks");
    for round in 0.. {
        if comm.rank() == 2 && round == 20 {
            kill_process(getpid(), Signal::KILL).expect("this process");
        }
        let mut gathered = [0_u8; 4];
        comm.all_gather(&[comm.rank() as u8], &mut gathered)
            .expect("all contributions, until rank 2 is gone");
    }
}

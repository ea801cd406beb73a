//! Tests of processes that are configured only by the variables of a launcher.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use crate::common::Port;
use comm::ReduceOp;

const ROLE: &str = "COMM_TEST_ROLE";

type Variables = Vec<(&'static str, OsString)>;

/// Starts a process of this test with these variables, and no others of launchers.
fn start(variables: &[(&'static str, OsString)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let launchers =
            ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "COMM_", "SLURM_", "OMPI_", "PM", "MPI_", "TORCH"];
        if launchers.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.args(["environment::rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "rank").envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Returns the output of processes with these variables.
fn report(ranks: &[Variables]) -> Vec<String> {
    let children: Vec<_> = ranks.iter().map(|variables| start(variables).spawn().unwrap()).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let report = |output: std::process::Output| {
        let text = String::from_utf8(output.stdout).unwrap();
        let report = text.lines().find_map(|line| line.split_once("report: "));
        report.unwrap_or_else(|| panic!("a rank printed no report: {text}")).1.to_owned()
    };
    outputs.map(report).collect()
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    match comm::init() {
        Ok(comm) => {
            let mut sum = [comm.rank() as u32 + 1];
            comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            println!("report: {} of {}, sum {}", comm.rank(), comm.size(), sum[0]);
        }
        Err(error) => println!("report: {error}"),
    }
}

fn number(of: usize) -> OsString {
    of.to_string().into()
}

#[test]
fn a_program_without_a_launcher_is_a_world_of_one() {
    assert_eq!(report(&[vec![]]), ["0 of 1, sum 1"]);
}

#[test]
fn a_program_in_a_batch_script_is_a_world_of_one() {
    let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "17")];
    assert_eq!(report(&[script.map(|(name, value)| (name, value.into())).into()]), ["0 of 1, sum 1"]);
}

#[test]
fn ranks_of_open_mpi_on_one_host_connect_without_an_address() {
    let job = format!("prterun-test-{}@1", std::process::id());
    let rank = |rank: usize| {
        vec![
            ("OMPI_COMM_WORLD_RANK", number(rank)),
            ("OMPI_COMM_WORLD_SIZE", number(3)),
            ("OMPI_COMM_WORLD_LOCAL_RANK", number(rank)),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", number(3)),
            ("PMIX_NAMESPACE", job.clone().into()),
        ]
    };
    let ranks: Vec<Variables> = (0..3).map(rank).collect();
    assert_eq!(report(&ranks), ["0 of 3, sum 6", "1 of 3, sum 6", "2 of 3, sum 6"]);
}

#[test]
fn tasks_of_a_step_of_slurm_connect_without_an_address() {
    // Two nodes as in Slurm's variables, both of which are this host.
    let rank = |rank: usize| {
        vec![
            ("SLURM_PROCID", number(rank)),
            ("SLURM_NTASKS", number(4)),
            ("SLURM_LOCALID", number(rank % 2)),
            ("SLURM_NODEID", number(rank / 2)),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2)".into()),
            ("SLURM_STEP_NODELIST", "127.0.0.[1-2]".into()),
            ("SLURM_JOB_ID", number(std::process::id() as usize)),
            ("SLURM_STEP_ID", number(0)),
        ]
    };
    let ranks: Vec<Variables> = (0..4).map(rank).collect();
    assert_eq!(report(&ranks), ["0 of 4, sum 10", "1 of 4, sum 10", "2 of 4, sum 10", "3 of 4, sum 10"]);
}

#[test]
fn a_misspelled_secret_is_an_error() {
    let report = report(&[vec![("COMM_SECRT", "hunter2".into())]]);
    assert!(report[0].contains("COMM_SECRT") && report[0].contains("COMM_SECRET"), "{report:?}");
    assert!(!report[0].contains("hunter2"), "{report:?}");
}

/// Returns the variables of rank 0 of two on this host.
fn first_of_two(master: u16) -> Variables {
    vec![
        ("RANK", number(0)),
        ("WORLD_SIZE", number(2)),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", number(master.into())),
    ]
}

#[test]
fn the_error_of_a_port_in_use_names_its_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let report = report(&[first_of_two(port)]);
    assert!(
        report[0].contains(&format!("MASTER_PORT = \"{port}\"")) && report[0].contains("in use"),
        "{report:?}"
    );
}

#[test]
fn the_error_of_a_port_range_in_use_names_its_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let master = Port::reserve();
    let mut variables = first_of_two(master.number);
    variables.push(("COMM_PORT_RANGE", number(port.into())));
    variables.push(("COMM_TRANSPORT", "tcp".into()));
    let report = report(&[variables]);
    assert!(
        report[0].contains("COMM_PORT_RANGE") && report[0].contains(&format!("{port}-{port}")),
        "{report:?}"
    );
}

#[test]
fn a_secret_that_is_not_utf8_is_an_error() {
    let master = Port::reserve();
    let mut variables = first_of_two(master.number);
    let bytes = vec![0x9c, 0xff, 0xc3, 0x28, 0x80];
    variables.push(("COMM_SECRET", OsString::from_vec(bytes)));
    let report = report(&[variables]);
    assert!(report[0].contains("COMM_SECRET is not text"), "{report:?}");
}

#[cfg(feature = "hybrid")]
#[test]
fn the_error_of_different_transports_names_their_variable() {
    let master = Port::reserve();
    let rank = |rank: usize| {
        let mut variables = first_of_two(master.number);
        variables[0].1 = number(rank);
        variables.push(("COMM_TRANSPORT", ["tcp", "shm"][rank].into()));
        variables
    };
    for report in report(&[rank(0), rank(1)]) {
        assert!(["COMM_TRANSPORT", "tcp", "shm"].iter().all(|part| report.contains(part)), "{report}");
    }
}

//! Programs started by the real launchers of MPI and by Slurm, with nothing set by hand.
//!
//! Launchers under the names of Debian's packages are found in `PATH`, others are listed in
//! `COMM_TEST_LAUNCHERS`, separated by colons. A launcher that is not installed is not tested, and
//! neither is Slurm unless it runs, which the test prints; with `COMM_REQUIRE_MPI=1` it fails if
//! there is none.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::hosts::{Family, Hosts, address};
use crate::common::process;
use comm::ReduceOp;

/// The names of launchers and their arguments: those that root and few cores need, and for MPICH
/// also two names of this host, on each of which it starts a process manager.
const LAUNCHERS: [(&str, &[&str]); 5] = [
    ("mpiexec.mpich", &[]),
    ("mpiexec.mpich", &["-pmi-port"]),
    ("mpiexec.mpich", &["-launcher", "fork", "-hosts", "localhost,127.0.0.2"]),
    ("mpiexec.hydra", &[]),
    ("mpirun.openmpi", OPEN_MPI),
];
const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe"];

type Launcher = (PathBuf, &'static [&'static str]);

fn installed() -> Vec<Launcher> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<Launcher> = Vec::new();
    for place in env::var_os("COMM_TEST_LAUNCHERS").iter().flat_map(env::split_paths) {
        let version = Command::new(&place).arg("--version").output().unwrap();
        let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        found.push((place, if is_open_mpi { OPEN_MPI } else { &[] }));
    }
    for (name, arguments) in LAUNCHERS {
        let mut places = env::split_paths(&path).filter_map(|folder| folder.join(name).canonicalize().ok());
        match places.next().map(|place| (place, arguments)) {
            None => println!("not tested: {name} is not installed"),
            // Several names may lead to one file.
            Some(launcher) if found.contains(&launcher) => {}
            Some(launcher) => found.push(launcher),
        }
    }
    if Command::new("scontrol").arg("ping").output().is_ok_and(|pinged| pinged.status.success()) {
        found.push(("srun".into(), &["--overcommit"]));
    } else {
        println!("not tested: Slurm does not run");
    }
    let is_required = env::var_os("COMM_REQUIRE_MPI").is_some();
    assert!(!is_required || !found.is_empty(), "no launcher is installed");
    found
}

/// The process of a rank: makes sums in one world after another.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    match process::role().as_deref() {
        Some("sum") => sum(),
        Some("leave") if is_rank_one() => std::process::exit(7),
        Some("leave") => {
            let error = comm::init().unwrap_err();
            println!("report: {error}");
        }
        _ => {}
    }
}

fn is_rank_one() -> bool {
    let rank = ["PMI_RANK", "PMI_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
        .iter()
        .find_map(|name| env::var(name).ok());
    rank.unwrap() == "1"
}

fn sum() {
    for round in 0..2_u64 {
        let comm = comm::init().unwrap();
        let ours = (comm.rank() as u64 + 1) << (8 * round);
        let sum = comm.all_reduce_scalar(ours, ReduceOp::Sum).unwrap();
        comm.finalize().unwrap();
        println!("report: {sum}");
    }
}

/// Starts a job of this many ranks.
fn job(launcher: &Launcher, role: &str, ranks: usize) -> Command {
    job_by(Command::new(&launcher.0), &[launcher.1, &["-n", &ranks.to_string()]].concat(), role)
}

/// Starts a job with these arguments of a launcher.
fn job_by(mut command: Command, arguments: &[&str], role: &str) -> Command {
    command.args(arguments).arg(env::current_exe().unwrap());
    process::set_role(&mut command, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn ranks_find_each_other_without_any_setting() {
    for launcher in installed() {
        // Several jobs at a time do not meet.
        let jobs = [
            (3, None),
            (4, Some(("COMM_SOCKET_IFNAME", "=lo"))),
            (2, Some(("COMM_ADVERTISE_ADDR", "127.0.0.1"))),
        ];
        let jobs = jobs.map(|(ranks, setting)| {
            // Open MPI fails if another job creates its folder in the same one at the same time.
            let folder = tempfile::tempdir().unwrap();
            let mut job = job(&launcher, "launchers::sum", ranks);
            (ranks, job.env("TMPDIR", folder.path()).envs(setting).spawn().unwrap(), folder)
        });
        for (ranks, job, _folder) in jobs {
            assert_sums(&launcher.0, ranks, &job.wait_with_output().unwrap());
        }
    }
}

/// Checks the reports of a job whose ranks have the role `sum`.
fn assert_sums(launcher: &Path, ranks: usize, output: &Output) {
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{launcher:?}: {text} {errors}");
    let sum: u64 = (1..=ranks as u64).sum();
    for expected in [sum, sum << 8] {
        let reports = text.lines().filter(|line| line.ends_with(&format!("report: {expected}")));
        assert_eq!(reports.count(), ranks, "{launcher:?}: {text} {errors}");
    }
}

fn open_mpi() -> Option<Launcher> {
    let is_open_mpi = |launcher: &Launcher| launcher.1 == OPEN_MPI;
    let found = installed().into_iter().find(is_open_mpi);
    found.filter(|_| comm_pmi::pmix::is_available())
}

#[test]
fn ranks_of_open_mpi_find_each_other_through_pmix() {
    let Some(launcher) = open_mpi() else { return println!("not tested: no Open MPI with PMIx") };
    // As if each rank ran on a host of its own.
    let hosts = ["env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0"];
    let arguments = [launcher.1, &["-n", "3"], &hosts].concat();
    let mut job = job_by(Command::new(&launcher.0), &arguments, "launchers::sum");
    assert_sums(&launcher.0, 3, &job.output().unwrap());
    let mut job = job_by(Command::new(&launcher.0), &arguments, "launchers::leave");
    let output = job.env("COMM_RENDEZVOUS_TIMEOUT_S", "2").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn ranks_of_open_mpi_on_two_hosts_find_each_other_without_any_setting() {
    let Some(launcher) = open_mpi() else { return println!("not tested: no Open MPI with PMIx") };
    let Some(hosts) = Hosts::new(2, 1) else { return };
    let addresses = [0, 1].map(|host| address(Family::V4, 0, host));
    let folder = tempfile::tempdir().unwrap();
    // Stands for ssh: the first argument is the host, and the others are a shell command.
    let agent = folder.path().join("agent");
    let enter = format!("{:?}", hosts.command(1)).replace('"', "");
    let script = format!("#!/bin/sh\nshift\nexec {enter} unshare -u sh -c \"hostname node1; $*\"\n");
    std::fs::write(&agent, script).unwrap();
    std::fs::set_permissions(&agent, PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = hosts.command(0);
    command.args(["unshare", "-u", "sh", "-c", r#"hostname node0; exec "$0" "$@""#]).arg(&launcher.0);
    let list = addresses.each_ref().map(|address| format!("{address}:2")).join(",");
    let agent = agent.to_str().unwrap().to_owned();
    let remote = ["--mca", "plm_rsh_agent", &agent, "--host", &list, "-n", "4"];
    let mut job = job_by(command, &[launcher.1, &remote].concat(), "launchers::sum");
    job.env("TMPDIR", folder.path());
    assert_sums(&launcher.0, 4, &job.output().unwrap());
}

/// Open MPI ends the job, so a rank may see rank 0 end before it is ended itself. MPICH lets the
/// others wait for a process that has not used its process manager.
#[test]
fn nobody_waits_longer_than_configured_for_a_rank_that_exits_before_it_comes() {
    for launcher in installed() {
        let started = Instant::now();
        let mut job = job(&launcher, "launchers::leave", 3);
        let output = job.env("COMM_RENDEZVOUS_TIMEOUT_S", "2").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && started.elapsed() < Duration::from_secs(100),
            "{launcher:?}: {text}"
        );
        for (_, report) in text.lines().filter_map(|line| line.split_once("report: ")) {
            let has_timed_out =
                report.starts_with("timed out after") && report.contains(" during rendezvous");
            let sees_the_end =
                launcher.1 == OPEN_MPI && report.starts_with("rank 0 was lost during rendezvous");
            assert!(has_timed_out || sees_the_end, "{launcher:?}: {text}");
        }
    }
}

//! Tests of ranks that are bound to processors.

use std::collections::HashSet;
use std::process::Command;

use crate::harness::{Launched, commctl, start};

const REPORT_CPUS: &str =
    r#"report "cpus.$RANK" "$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status) $OMP_NUM_THREADS""#;

/// Starts a launch with these options, if given on one processor only.
fn launch_bound(processor: Option<&str>, flags: &[&str]) -> Launched {
    start(|dir| {
        let script = format!("{}{REPORT_CPUS}", crate::harness::REPORT);
        let inner = commctl();
        let mut command = Command::new(processor.map_or("env", |_| "taskset"));
        command.args(processor.iter().flat_map(|cpus| ["-c", cpus]));
        command.arg(inner.get_program()).args(inner.get_args());
        command.arg("run").args(flags).args(["--", "sh", "-c", &script]);
        command.env("DIR", dir.path()).env_remove("OMP_NUM_THREADS");
        command
    })
}

/// Returns the processors that this test may use, and their number.
fn allowed() -> (String, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    (list.trim().to_owned(), std::thread::available_parallelism().unwrap().get())
}

#[test]
fn each_rank_has_its_own_cores() {
    let mut launched = launch_bound(None, &["-n", "2", "--bind-to", "core"]);
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let reports = [0, 1].map(|rank| launched.report(&format!("cpus.{rank}")));
    let sets: HashSet<&String> = reports.iter().collect();
    let (list, count) = allowed();
    let first = list.split(['-', ',']).next().unwrap();
    let siblings = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    if std::fs::read_to_string(siblings).unwrap().trim() == list {
        return assert_eq!(sets.len(), 1, "they share the only core: {reports:?}");
    }
    assert_eq!(sets.len(), 2, "{reports:?}");
    let threads: usize =
        reports.iter().map(|report| report.split_once(' ').unwrap().1.parse::<usize>().unwrap()).sum();
    assert_eq!(threads, count, "{reports:?}");
}

#[test]
fn a_rank_is_bound_only_to_processors_of_the_launcher() {
    let list = allowed().0;
    let first = list.split(['-', ',']).next().unwrap();
    for bind_to in ["core", "numa"] {
        let mut launched = launch_bound(Some(first), &["-n", "1", "--bind-to", bind_to]);
        assert_eq!(launched.end().status.code(), Some(0));
        assert_eq!(launched.report("cpus.0"), format!("{first} 1"));
    }
    // Ranks share a core if there are more of them.
    let mut launched = launch_bound(Some(first), &["-n", "2", "--bind-to", "core"]);
    assert_eq!(launched.end().status.code(), Some(0));
    assert_eq!(
        [0, 1].map(|rank| launched.report(&format!("cpus.{rank}"))),
        [(); 2].map(|()| format!("{first} 1"))
    );
}

#[test]
fn ranks_share_the_processors_of_a_numa_node() {
    let mut launched = launch_bound(None, &["-n", "3", "--bind-to", "numa"]);
    assert_eq!(launched.end().status.code(), Some(0));
    let (list, count) = allowed();
    if std::fs::read_to_string("/sys/devices/system/node/online").unwrap().trim() == "0" {
        let expected = format!("{list} {}", (count / 3).max(1));
        assert_eq!(
            [0, 1, 2].map(|rank| launched.report(&format!("cpus.{rank}"))),
            [(); 3].map(|()| expected.clone())
        );
    }
}

#[test]
fn an_unknown_binding_is_an_error() {
    let ended = launch_bound(None, &["-n", "1", "--bind-to", "socket"]).end();
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("expected core, numa or none"), "{ended:?}");
}

//! Faults between hosts, which are network namespaces with names of their own.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::network::{Family, Hosts, address};
use crate::ranks::{Processes, as_rank, place};
use crate::table::fault_of;

const PORT: u16 = 29_500;

/// Returns a command that runs the program and the arguments that are added to it on a host, after
/// a script.
fn on_host(hosts: &Hosts, host: usize, script: &str) -> Command {
    let mut command = hosts.command(host);
    let script = format!("echo node{host} > /proc/sys/kernel/hostname; {script} exec \"$@\"");
    command.args(["unshare", "--uts", "sh", "-c", &script, "sh"]);
    command
}

/// Runs `commctl doctor` as one rank on each host, with a script before it, and returns the first
/// line.
fn doctor(hosts: &Hosts, script: impl Fn(usize) -> String) -> String {
    let mut processes = Processes::default();
    for host in 0..hosts.count() {
        let mut command = on_host(hosts, host, &script(host));
        command.args([env!("CARGO_BIN_EXE_commctl"), "doctor"]).stdout(Stdio::piped());
        place(&mut command, host, hosts.count(), (&address(Family::V4, 0, 0), PORT));
        processes.start(command.stderr(Stdio::null()));
    }
    processes.first_output(0)
}

#[test]
fn a_slow_link_is_named() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let limit = "tc qdisc add dev eth0 root tbf rate 50mbit burst 64kb latency 50ms || exit;";
    let line = doctor(&hosts, |host| if host == 2 { limit.to_owned() } else { String::new() });
    fault_of("a_slow_link_is_named").check(&line);
}

#[test]
fn a_clock_that_is_off_is_named() {
    let (Some(hosts), folder) = (Hosts::new(2, 1), tempfile::tempdir().unwrap()) else { return };
    let library = folder.path().join("clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/clock.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success(), "the compiler with which Rust links");
    let preload = format!("export LD_PRELOAD={};", library.display());
    let line = doctor(&hosts, |host| if host == 1 { preload.clone() } else { String::new() });
    fault_of("a_clock_that_is_off_is_named").check(&line);
}

#[test]
fn an_interface_that_is_down_is_named() {
    let Some(hosts) = Hosts::new(1, 1) else { return };
    let mut command = on_host(&hosts, 0, "ip link set eth0 down;");
    command.args([env!("CARGO_BIN_EXE_commctl"), "doctor", "-n", "1", "--world", "2"]);
    let mut processes = Processes::default();
    let doctor = processes.start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    fault_of("an_interface_that_is_down_is_named").check(&processes.first_output(doctor));
}

#[test]
fn packets_that_are_dropped_are_named() {
    let Some(hosts) = Hosts::new(3, 1) else { return };
    let mut processes = Processes::default();
    for host in 0..hosts.count() {
        // Hosts 1 and 2 send each other's packets to an address of no interface.
        let drop = match host {
            0 => String::new(),
            _ => {
                let other = address(Family::V4, 0, 3 - host);
                format!("ip neigh replace {other} lladdr 02:00:00:00:00:99 dev eth0 nud permanent;")
            }
        };
        let mut command = on_host(&hosts, host, &drop);
        as_rank(&mut command, "barrier").stderr(Stdio::piped());
        place(&mut command, host, hosts.count(), (&address(Family::V4, 0, 0), PORT));
        processes.start(command.env("COMM_RENDEZVOUS_TIMEOUT_S", "5"));
    }
    fault_of("packets_that_are_dropped_are_named").check(&processes.first_error(2));
}

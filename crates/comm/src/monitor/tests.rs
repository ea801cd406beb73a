//! Tests of the thread, in one process.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use comm_core::{Comm, Membership, ReduceOp};

use super::*;
use crate::TransportKind;

/// Returns the names of the sockets of this process with this launch.
fn names(launch: u64) -> Vec<MonitorName> {
    let list = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = list.lines().filter_map(|line| MonitorName::parse(line.split_once('@')?.1));
    names.filter(|name| name.launch == launch && name.pid == std::process::id()).collect()
}

fn connect(name: MonitorName) -> UnixStream {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name.to_string()).unwrap()).unwrap()
}

fn ask(name: MonitorName, request: &str) -> Vec<u8> {
    let mut stream = connect(name);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

fn alone(job: u64) -> Comm {
    let mut config = Config::new(Membership { rank: 0, size: 1 }, "", 0).unwrap();
    (config.job, config.transport) = (job, TransportKind::Tcp);
    crate::init_with(&config).unwrap()
}

#[test]
fn a_rank_answers_for_all_of_its_groups_until_the_last_one_is_closed() {
    let comm = alone(0xa1);
    let group = comm.duplicate().unwrap();
    (0..10).for_each(|_| group.all_reduce(&mut [1_u32; 100], ReduceOp::Sum).unwrap());
    drop(comm);
    let [name] = names(0xa1)[..] else { unreachable!("one socket") };
    let report = MonitorReport::parse(&ask(name, "{\"calls\": 4}\n")).unwrap();
    let [record] = &report.records[..] else { unreachable!("one group is left: {report:?}") };
    assert_eq!((record.job, record.calls.len(), record.calls[3].sequence), (0xa1, 4, 10));
    let sums = report.metrics[0].calls.iter().find(|calls| calls.collective == "all_reduce").unwrap();
    assert_eq!((sums.calls, sums.bytes, sums.durations.iter().sum::<u64>()), (10, 4000, 10));
    drop(group);
    assert_eq!(names(0xa1), []);
}

#[test]
fn worlds_of_a_process_have_sockets_of_their_own() {
    let worlds = [alone(0xa2), alone(0xa2)];
    let mut numbers: Vec<u32> = names(0xa2).iter().map(|name| name.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
    drop(worlds);
}

#[test]
fn a_client_that_sends_nonsense_or_nothing_does_not_disturb_the_next_one() {
    let comm = alone(0xa3);
    let [name] = names(0xa3)[..] else { unreachable!("one socket") };
    drop(connect(name));
    let long = "1".repeat(10_000);
    for nonsense in ["\n", "{}\n", "{\"calls\": -1}\n", "\u{0}\n", &long] {
        let mut stream = connect(name);
        // The thread may have closed it before it has read all.
        let _ = stream.write_all(nonsense.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, [0_u8; 0]);
    }
    // It does not ask, so that the thread waits for it when the communicator is dropped.
    let silent = connect(name);
    assert!(MonitorReport::parse(&ask(name, "{\"calls\": 1}\n")).is_ok());
    drop(comm);
    drop(silent);
    assert_eq!(names(0xa3), []);
}

#[test]
fn the_monitor_can_be_turned_off() {
    let mut config = Config::new(Membership { rank: 0, size: 1 }, "", 0).unwrap();
    (config.job, config.monitor) = (0xa4, false);
    let comm = crate::init_with(&config).unwrap();
    assert_eq!(names(0xa4), []);
    drop(comm);
}

#[test]
fn names_are_parsed_as_they_are_written() {
    let name = MonitorName { launch: 0xab, rank: 3, pid: 4711, number: 2 };
    assert_eq!(MonitorName::parse(&name.to_string()), Some(name));
    for wrong in ["", "comm-monitor", "comm-monitor/ab/3/4711", "comm-monitor/ab/3/4711/2/1", "x/ab/3/4711/2"]
    {
        assert_eq!(MonitorName::parse(wrong), None);
    }
}

#[test]
fn ranks_without_a_job_share_the_place_at_which_they_meet() {
    let at = |port| {
        let mut config = Config::new(Membership { rank: 0, size: 2 }, "10.0.0.1", port).unwrap();
        let first = launch(&config);
        config.rank = 1;
        assert_eq!(launch(&config), first);
        first
    };
    assert_ne!(at(1), at(2));
}

#[test]
fn ranks_whose_caller_knows_the_store_share_their_parent_and_a_world_of_one_is_alone() {
    let of = |size| launch(&Config::new(Membership { rank: 0, size }, "", 0).unwrap());
    assert_eq!(of(2), of(3));
    assert_eq!(of(1), crate::env::fnv_1a(format!("process {}", std::process::id()).as_bytes()));
    assert_ne!(of(1), of(2));
}

#[test]
fn a_world_that_is_a_group_of_a_larger_one_is_shown_as_a_group_of_its_ranks() {
    let mut config = Config::new(Membership { rank: 0, size: 1 }, "", 0).unwrap();
    assert!(config.set_subgroup("tensor parallel", vec![3, 4]).is_err());
    config.set_subgroup("tensor parallel", vec![3]).unwrap();
    // It belongs to the launch of all groups of the program, also if it has one member.
    assert_eq!(launch(&config), launch(&Config::new(Membership { rank: 0, size: 2 }, "", 0).unwrap()));
    (config.job, config.transport) = (0xa6, TransportKind::Tcp);
    let folder = tempfile::tempdir().unwrap();
    (config.flight_dir, config.ring.record_on_close) = (Some(folder.path().to_owned()), true);
    let comm = crate::init_with(&config).unwrap();
    let child = comm.duplicate().unwrap();
    let [name] = names(0xa6)[..] else { unreachable!("one socket") };
    assert_eq!(name.rank, 3);
    let report = MonitorReport::parse(&ask(name, "{\"calls\": 4}\n")).unwrap();
    let [ours, childs] = &report.records[..] else { unreachable!("two groups: {report:?}") };
    assert_eq!((&ours.members[..], &childs.members[..]), (&[3][..], &[3][..]));
    assert!(ours.group != 0 && childs.group != 0 && ours.group != childs.group, "{report:?}");
    drop((comm, child));
    let mut files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort_unstable();
    let mut expected = [ours, childs].map(|record| std::ffi::OsString::from(record.file_name()));
    expected.sort_unstable();
    assert_eq!(files, expected);
}

fn reports() -> [MonitorReport; 1] {
    let comm = alone(0xa5);
    comm.barrier().unwrap();
    let [name] = names(0xa5)[..] else { unreachable!("one socket") };
    let mut report = MonitorReport::parse(&ask(name, "{\"calls\": 1}\n")).unwrap();
    // Fewer digits keep the test short.
    for record in &mut report.records {
        (record.written_ns, record.host, record.boot_id) = (5, String::new(), String::new());
        record.calls.iter_mut().for_each(|call| (call.started_ns, call.ended_ns) = (3, None));
    }
    report.metrics[0].calls.truncate(1);
    report.metrics[0].calls.iter_mut().for_each(|calls| calls.durations = vec![1]);
    [report]
}

comm_sim::hostile_bytes!(answers_are_read_as_they_were_written: reports(),
    |report| serde_json::to_vec(report).unwrap(), |bytes| MonitorReport::parse(bytes).ok());

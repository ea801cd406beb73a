//! Groups of a process leak no descriptors, threads or memory. This is a separate program with a
//! single test, because these belong to the process.
#![cfg(feature = "hybrid")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use comm::{ReduceOp, TransportKind};
use common::{config, each, store};

/// The ranks of a group, which are threads.
const RANKS: usize = 3;
/// The number of groups over each transport.
const GROUPS: usize = 500;

/// The number of resources of each kind that this process has.
fn resources() -> BTreeMap<&'static str, usize> {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    BTreeMap::from([
        ("descriptors", count("/proc/self/fd")),
        ("threads", count("/proc/self/task")),
        ("shared mappings", shared),
    ])
}

/// Creates a group, makes a call, and ends the group in one of three ways.
fn use_group(number: usize, rank: usize, (transport, hosts): (TransportKind, usize), store: SocketAddr) {
    let mut config = config(rank, RANKS, store);
    config.transport = transport;
    config.host_id = Some((rank * hosts / RANKS).to_string());
    let comm =
        comm::init_with(&config).unwrap_or_else(|error| panic!("group {number}, rank {rank}: {error}"));
    let mut buffer = [rank as u64; 100];
    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert_eq!(buffer, [3; 100]);
    match number % 3 {
        0 => comm.finalize().unwrap(),
        1 => drop(comm),
        _ => {
            // So that no abort reaches a rank in its call.
            let _ = comm.barrier();
            comm.abort("the group is over");
        }
    }
}

/// Waits until there are no more resources than `before`: a thread that was joined stays in /proc
/// for a moment.
fn check(name: &str, before: &BTreeMap<&'static str, usize>) {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let now = resources();
        if now.iter().all(|(kind, number)| number <= &before[kind]) {
            return;
        }
        assert!(Instant::now() < limit, "{name}: {now:?} are left, and {before:?} were there before");
        std::thread::yield_now();
    }
}

#[test]
fn five_hundred_groups_leave_nothing() {
    let store = store();
    let address = store.local_addr();
    let transports = [
        ("shared memory", (TransportKind::SharedMemory, 1)),
        ("TCP", (TransportKind::Tcp, 1)),
        ("both", (TransportKind::Auto, 2)),
    ];
    for (name, topology) in transports {
        let form = |number| drop(each(RANKS, |rank| use_group(number, rank, topology, address)));
        // What a process keeps, such as the thread that watches others, is there after the first
        // groups.
        (0..3).for_each(form);
        let (before, began) = (resources(), Instant::now());
        (0..GROUPS).for_each(form);
        println!("{GROUPS} groups over {name} in {:?}", began.elapsed());
        check(name, &before);
    }
}

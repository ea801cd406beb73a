//! Tests with real processes; some are killed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use crate::common::process::{self, Rank};
use comm::{Comm, Error, ReduceOp};

/// The transport between ranks, and the number of emulated hosts.
#[derive(Debug, Clone, Copy)]
struct Topology {
    transport: &'static str,
    hosts: usize,
}

const TOPOLOGIES: &[Topology] = &[
    Topology { transport: "tcp", hosts: 1 },
    #[cfg(feature = "hybrid")]
    Topology { transport: "auto", hosts: 1 },
    #[cfg(feature = "hybrid")]
    Topology { transport: "auto", hosts: 2 },
];

fn start(role: &str, topology: Topology, ranks: usize) -> (comm::tcp::TcpStoreServer, Vec<Rank>) {
    process::start(&format!("processes::{role}"), ranks, |rank| {
        let host = (rank * topology.hosts / ranks).to_string();
        [("COMM_TRANSPORT", topology.transport.into()), ("COMM_HOSTID", host)]
    })
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let comm = comm::init().unwrap();
    match role.as_str() {
        "loop small" => all_reduce_forever(&comm, 10),
        "loop large" => all_reduce_forever(&comm, 1_000_000),
        "halves" => halves(&comm),
        "leave first" => leave_first(&comm),
        "messages" => exchange_forever(&comm),
        "ring" => send_around(&comm),
        "groups" => make_groups_forever(&comm),
        other => panic!("no such role: {other}"),
    }
}

/// Makes all-reduces until one fails, then prints the error.
fn all_reduce_forever(comm: &Comm, len: usize) {
    let mut buffer = vec![1.0_f32; len];
    for round in 0_u64.. {
        buffer.fill(1.0);
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            let lost = match error {
                Error::PeerLost { peer, .. } => format!("lost {peer}"),
                ref other => format!("other: {other}"),
            };
            println!("report: {lost}");
            return;
        }
        assert!(buffer.iter().all(|&element| element == comm.size() as f32));
        if round == 50 {
            println!("report: running");
        }
    }
}

/// Even ranks make all-reduces until one fails, odd ranks until they get input; then all ranks use
/// the whole group.
fn halves(comm: &Comm) {
    let even = comm.rank() % 2 == 0;
    let half = comm.split(Some(u64::from(even)), 0).unwrap().unwrap();
    if even {
        all_reduce_forever(&half, 1000);
    } else {
        all_reduce_until_resumed(&half);
    }
    match comm.barrier().unwrap_err().root_cause() {
        Error::PeerLost { peer, .. } => println!("report: all lost {peer}"),
        other => println!("report: other: {other}"),
    }
}

/// Makes all-reduces until every rank gets input.
fn all_reduce_until_resumed(comm: &Comm) {
    let resumed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = std::sync::Arc::clone(&resumed);
    std::thread::spawn(move || {
        let read = std::io::stdin().read_line(&mut String::new());
        flag.store(read.is_ok(), std::sync::atomic::Ordering::Relaxed);
    });
    println!("report: running");
    loop {
        let mut buffer = [f32::from(u8::from(resumed.load(std::sync::atomic::Ordering::Relaxed))), 1.0];
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(buffer[1] == comm.size() as f32);
        if buffer[0] == comm.size() as f32 {
            println!("report: continued");
            return;
        }
    }
}

/// Creates groups of all and of some ranks until an error, then prints it and exits.
fn make_groups_forever(comm: &Comm) {
    let make = || -> comm::Result<()> {
        drop(comm.duplicate()?);
        drop(comm.split(Some(comm.rank() as u64 % 2), 0)?);
        comm.new_group(&[3, 1, 0]).map(drop)
    };
    for round in 0_u64.. {
        if let Err(error) = make() {
            match error.root_cause() {
                Error::PeerLost { peer, .. } => {
                    println!("rank {}: {error}", comm.rank());
                    println!("report: lost {peer}");
                }
                _ => println!("report: other: {error}"),
            }
            return;
        }
        if round == 2 {
            println!("report: running");
        }
    }
}

/// Exchanges messages with every other rank from one thread each, until that fails, then prints the
/// error. Ranks that were not killed exit too, and are not reported.
fn exchange_forever(comm: &Comm) {
    let peers = (0..comm.size()).filter(|&peer| peer != comm.rank());
    let exchange = |peer: usize| {
        let (message, mut buffer) = (vec![comm.rank() as u8; 100_000], vec![0_u8; 100_000]);
        for round in 0_u64.. {
            match comm.send_recv((peer, round), &message, (peer, round), &mut buffer) {
                Ok(_) => assert!(buffer.iter().all(|&byte| byte == peer as u8)),
                Err(Error::PeerLost { peer: lost, .. }) => return println!("report: lost {lost}"),
                Err(other) => return println!("report: other: {other}"),
            }
            if round == 20 && peer == (comm.rank() + 1) % comm.size() {
                println!("report: running");
            }
        }
    };
    std::thread::scope(|scope| peers.for_each(|peer| drop(scope.spawn(move || exchange(peer)))));
}

/// Sends messages around a ring until that fails, then prints the error and leaves.
fn send_around(comm: &Comm) {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    for round in 0_u64.. {
        // Eager messages and long ones.
        let len = if round % 2 == 0 { 1000 } else { 200_000 };
        let mut buffer = vec![0_u8; len];
        match comm.send_recv((next, round), &vec![rank as u8; len], (previous, round), &mut buffer) {
            Ok(_) => assert!(buffer.iter().all(|&byte| byte == previous as u8)),
            Err(Error::PeerLost { peer, loss, .. }) => {
                println!("rank {rank}: {loss}");
                return println!("report: lost {peer}");
            }
            Err(other) => return println!("report: other: {other}"),
        }
        if round == 20 {
            println!("report: running");
        }
    }
}

/// Rank 0 sends a broadcast and leaves immediately; the others are slow.
fn leave_first(comm: &Comm) {
    let mut buffer = vec![7_u8; 1 << 20];
    if comm.rank() > 0 {
        buffer.fill(0);
        std::thread::sleep(Duration::from_millis(300 * comm.rank() as u64));
    }
    comm.broadcast(0, &mut buffer).unwrap();
    println!("report: {}", buffer.iter().all(|&byte| byte == 7));
}

fn kill_one(role: &str, topology: Topology, ranks: usize, victim: usize) {
    kill_one_after(Duration::ZERO, role, topology, ranks, victim);
}

fn kill_one_after(wait: Duration, role: &str, topology: Topology, ranks: usize, victim: usize) {
    let (_store, mut processes) = start(role, topology, ranks);
    for process in &mut processes {
        assert_eq!(process.report().as_deref(), Some("running"));
    }
    std::thread::sleep(wait);
    let killed = Instant::now();
    processes[victim].child.kill().unwrap();
    for (rank, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let report = process.report();
        assert_eq!(report, Some(format!("lost {victim}")), "rank {rank} of {ranks}, {role}, {topology:?}");
        assert!(killed.elapsed() < Duration::from_secs(2), "rank {rank}: {:?}", killed.elapsed());
    }
}

#[test]
fn a_killed_rank_is_named_by_every_other_rank_within_two_seconds() {
    for &topology in TOPOLOGIES {
        for role in ["loop small", "loop large"] {
            kill_one(role, topology, 2, 1);
            kill_one(role, topology, 5, 0);
            kill_one(role, topology, 6, 3);
        }
    }
}

#[cfg(feature = "flight")]
#[test]
fn every_rank_but_the_killed_one_writes_its_last_calls() {
    let folder = tempfile::tempdir().unwrap();
    let (_store, mut processes) = process::start("processes::loop small", 4, |_| {
        [("COMM_FLIGHT_DIR", folder.path().to_str().unwrap().to_owned())]
    });
    processes.iter_mut().for_each(|process| assert_eq!(process.report().as_deref(), Some("running")));
    processes[1].child.kill().unwrap();
    for rank in [0, 2, 3] {
        // The file is complete before the call returns its error.
        assert_eq!(processes[rank].report().as_deref(), Some("lost 1"));
        let path = folder.path().join(format!("world-rank-{rank:05}.json"));
        let dump = comm::flight::FlightDump::parse(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!((dump.rank, dump.size, dump.pid), (rank, 4, processes[rank].child.id()));
        let failure = dump.failure.unwrap();
        assert_eq!((failure.kind.as_str(), &failure.ranks[..]), ("peer_lost", &[1][..]));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_killed_rank_is_named_by_its_message_partners() {
    for &topology in TOPOLOGIES {
        kill_one("messages", topology, 2, 0);
        kill_one("messages", topology, 4, 2);
    }
}

#[test]
fn a_rank_killed_in_a_ring_of_messages_is_named_by_every_other_rank() {
    for &topology in TOPOLOGIES {
        // The times are independent of the ranks.
        for (at, victim) in [0, 3, 5, 2].into_iter().enumerate() {
            kill_one_after(Duration::from_micros(900 * at as u64), "ring", topology, 6, victim);
        }
    }
}

#[test]
fn a_rank_killed_while_groups_are_made_is_named_by_every_other_rank() {
    for &topology in TOPOLOGIES {
        // The times are independent of the ranks.
        for (at, victim) in [0, 2, 1, 3, 0, 3, 1, 2].into_iter().enumerate() {
            kill_one_after(Duration::from_micros(1700 * at as u64), "groups", topology, 4, victim);
        }
    }
}

#[test]
fn a_rank_that_leaves_in_order_is_not_a_failure() {
    for &topology in TOPOLOGIES {
        let (_store, mut processes) = start("leave first", topology, 4);
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("true"), "{topology:?}");
            assert!(process.child.wait().unwrap().success());
        }
    }
}

#[test]
fn a_killed_rank_ends_its_groups_and_no_others() {
    TOPOLOGIES.iter().for_each(|topology| kill_one_of_a_half(*topology));
}

fn kill_one_of_a_half(topology: Topology) {
    let (_store, mut processes) = start("halves", topology, 6);
    for process in &mut processes {
        assert_eq!(process.report().as_deref(), Some("running"));
    }
    processes[2].child.kill().unwrap();
    let killed = Instant::now();
    for rank in [0, 4] {
        // Rank 2 is the second of the even ranks.
        assert_eq!(processes[rank].report().as_deref(), Some("lost 1"), "rank {rank}");
    }
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    for rank in [1, 3, 5] {
        processes[rank].resume();
    }
    for rank in [1, 3, 5] {
        assert_eq!(processes[rank].report().as_deref(), Some("continued"), "rank {rank}");
    }
    for rank in [0, 1, 3, 4, 5] {
        assert_eq!(processes[rank].report().as_deref(), Some("all lost 2"), "rank {rank}");
    }
}

//! Tests with real processes whose global allocator is the heap that peers read in place.
#![cfg(feature = "hybrid")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use comm::{Comm, Error, Heap, ReduceOp};
use common::process::{self, Rank};

#[global_allocator]
static HEAP: Heap = Heap::new();

/// The timeout of a call in which a rank dies.
const DEADLINE: Duration = Duration::from_secs(10);
/// The rank that is killed.
const KILLED: usize = 1;
/// More than a segment of one block, and less.
const LENS: [usize; 3] = [1 << 18, 1 << 20, 5 << 20];

fn start(role: &str, ranks: usize) -> (comm::tcp::TcpStoreServer, Vec<Rank>) {
    process::start(role, ranks, |_| [("COMM_TRANSPORT", "shm".to_owned())])
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let comm = comm::init().unwrap().with_timeout(DEADLINE);
    match role.as_str() {
        "all-reduces" => all_reduces(comm),
        "endless" => endless(&comm),
        other => panic!("no such role: {other}"),
    }
}

fn values(comm: &Comm, len: usize, round: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 31 + comm.rank() * 7 + round) % 1000) as f32).collect()
}

/// All-reduces of vectors have the same results as all-reduces of slices too small to be in
/// segments.
fn all_reduces(comm: Comm) {
    for (round, len) in LENS.into_iter().cycle().take(12).enumerate() {
        let mut whole = values(&comm, len, round);
        let pieces: Vec<Vec<f32>> = whole.chunks(10_000).map(<[f32]>::to_vec).collect();
        comm.all_reduce(&mut whole, ReduceOp::Sum).unwrap();
        for (mut piece, sums) in pieces.into_iter().zip(whole.chunks(10_000)) {
            comm.all_reduce(&mut piece, ReduceOp::Sum).unwrap();
            assert_eq!(piece, sums);
        }
    }
    assert!(Heap::usage().segments > 0 && Heap::usage().fallbacks == 0, "{:?}", Heap::usage());
    comm.finalize().unwrap();
    println!("report: done");
}

fn endless(comm: &Comm) {
    for round in 0.. {
        let mut buffer = values(comm, LENS[round % LENS.len()], round);
        let mut into = vec![0.0; buffer.len()];
        let outcome = comm
            .all_reduce(&mut buffer, ReduceOp::Sum)
            .and_then(|()| comm.all_reduce_into(&buffer, &mut into, ReduceOp::Max));
        match outcome {
            Ok(()) if round == 10 => println!("report: running"),
            Ok(()) => {}
            Err(Error::PeerLost { peer, .. }) => return println!("report: lost {peer}"),
            Err(other) => return println!("report: other: {other}"),
        }
    }
}

#[test]
fn ranks_of_several_processes_have_exact_results() {
    for ranks in [2, 4] {
        let (_store, mut processes) = start("all-reduces", ranks);
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("done"), "{ranks} ranks");
            assert!(process.child.wait().unwrap().success());
        }
    }
}

#[test]
fn a_rank_that_is_killed_in_an_all_reduce_is_named_and_no_other_rank_ends() {
    for ranks in [2, 3, 4, 4] {
        let (_store, mut processes) = start("endless", ranks);
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("running"));
        }
        let killed = Instant::now();
        processes[KILLED].child.kill().unwrap();
        for (rank, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != KILLED) {
            let report = process.report();
            assert_eq!(report, Some(format!("lost {KILLED}")), "rank {rank} of {ranks}");
            assert!(process.child.wait().unwrap().success(), "rank {rank} of {ranks}");
        }
        assert!(killed.elapsed() < DEADLINE, "{ranks} ranks");
    }
}

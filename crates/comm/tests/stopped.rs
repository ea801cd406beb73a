//! Tests with real processes; one is stopped by SIGSTOP.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use comm::{Comm, Error, ReduceOp, Result};
use common::process::{self, Rank};
use rustix::process::{Pid, Signal, kill_process};

/// A timeout with time for replies of ranks on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(6);

const COLLECTIVES: [&str; 6] = ["all_reduce", "broadcast", "gather", "all_to_all", "scan", "barrier"];

/// The process of a rank that a test starts: makes calls until one fails, then prints the error.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let comm = comm::init().unwrap();
    // Ranks that do not wait for others are many calls ahead by then.
    (0..100).try_for_each(|_| call(&comm, &role)).unwrap();
    comm.barrier().unwrap();
    println!("report: running");
    let comm = comm.with_timeout(TIMEOUT);
    let error = loop {
        if let Err(error) = call(&comm, &role) {
            break error;
        }
    };
    match error {
        Error::Timeout { waiting_for, .. } => println!("report: waited for {waiting_for:?}"),
        other => println!("report: other: {other}"),
    }
}

fn call(comm: &Comm, collective: &str) -> Result<()> {
    let (mut one, mut all) = ([1_u64; 500], vec![1_u64; 500 * comm.size()]);
    match collective {
        "all_reduce" => comm.all_reduce(&mut one, ReduceOp::Sum),
        "broadcast" => comm.broadcast(1, &mut one),
        "gather" => comm.gather(1, &one, &mut all),
        "all_to_all" => comm.all_to_all_in_place(&mut all),
        "scan" => comm.scan(&mut one, ReduceOp::Sum),
        "barrier" => comm.barrier(),
        other => panic!("no such role: {other}"),
    }
}

/// A stopped process. Dropping it continues the process, so that it can be killed.
struct Stopped(Pid);

impl Stopped {
    fn new(rank: &Rank) -> Self {
        let pid = Pid::from_child(&rank.child);
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Stops one rank in the middle of its calls.
fn stop_one(collective: &str, transport: &str, ranks: usize, victim: usize) {
    let (_store, mut processes) =
        process::start(collective, ranks, |_| [("COMM_TRANSPORT", transport.to_owned())]);
    for process in &mut processes {
        assert_eq!(process.report().as_deref(), Some("running"));
    }
    thread::sleep(Duration::from_millis(20));
    let stopped = Stopped::new(&processes[victim]);
    let began = Instant::now();
    for (rank, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let context = format!("rank {rank} of {ranks}, {collective} over {transport}");
        assert_eq!(process.report(), Some(format!("waited for [{victim}]")), "{context}");
        assert!(began.elapsed() < 3 * TIMEOUT, "{context}: {:?}", began.elapsed());
    }
    drop(stopped);
}

fn stop_one_in_each(ranks: usize) {
    for transport in ["tcp", "auto"] {
        thread::scope(|scope| {
            for (at, collective) in COLLECTIVES.into_iter().enumerate() {
                scope.spawn(move || stop_one(collective, transport, ranks, (at + 2) % ranks));
            }
        });
    }
}

#[test]
fn a_stopped_process_and_no_other_is_named_by_every_rank() {
    for ranks in [3, 5] {
        stop_one_in_each(ranks);
    }
}

#[test]
#[ignore = "48 processes at a time"]
fn a_stopped_process_of_eight_and_no_other_is_named_by_every_rank() {
    stop_one_in_each(8);
}

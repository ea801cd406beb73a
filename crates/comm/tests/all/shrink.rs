//! Tests with real processes, of which some are killed or stopped, and the others go on.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use crate::common::process::{self, Rank};
use comm::{Comm, Error, ReduceOp, Result, ShrinkOptions};
use rustix::process::{Pid, Signal, kill_process};

/// The timeout of calls, with time for replies of ranks on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The timeout in a group of hundreds of ranks, which share a few processors.
const TIMEOUT_OF_HUNDREDS: Duration = Duration::from_secs(60);
/// The number of elements of an all-reduce.
const LENGTH: usize = 1000;

/// The transport between ranks, and the number of emulated hosts.
type Topology = (&'static str, usize);

const TOPOLOGIES: [Topology; 3] = [("tcp", 1), ("auto", 1), ("auto", 2)];

/// The process of a rank that a test starts: makes all-reduces, in a smaller group after each
/// failure, and prints the members of each group after the first right result.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let timeout = match process::role().as_deref() {
        None => return,
        Some("one of hundreds") => TIMEOUT_OF_HUNDREDS,
        Some(_) => TIMEOUT,
    };
    match go_on(comm::init().unwrap(), timeout) {
        Ok(()) => {}
        Err(Error::Aborted { .. }) => println!("report: left out"),
        Err(other) => println!("report: {other}"),
    }
}

fn go_on(comm: Comm, timeout: Duration) -> Result<()> {
    let mut comm = comm.with_timeout(timeout);
    let mut members: Vec<usize> = (0..comm.size()).collect();
    let (mut call, mut first) = (0, 0);
    let mut is_reported = false;
    loop {
        match all_reduce(&comm, &members, call) {
            Ok(()) => {
                call += 1;
                if !is_reported {
                    println!("report: group {members:?}");
                    is_reported = true;
                }
            }
            Err(_) => {
                let shrunk = comm.shrink(&ShrinkOptions::default().patience(timeout / 2))?;
                members = shrunk.ranks.iter().map(|&rank| members[rank]).collect();
                first += shrunk.completed;
                (comm, call, is_reported) = (shrunk.comm, first, false);
            }
        }
    }
}

/// Makes the call with this number, counted over all groups, and compares its result exactly.
fn all_reduce(comm: &Comm, members: &[usize], call: u64) -> Result<()> {
    // Scattered over 48 bits, so that other ranks do not have the same sum.
    let element = |rank: usize| ((rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) + call;
    let mut sums = [element(members[comm.rank()]); LENGTH];
    comm.all_reduce(&mut sums, ReduceOp::Sum)?;
    let expected: u64 = members.iter().map(|&rank| element(rank)).sum();
    assert!(sums.iter().all(|&sum| sum == expected), "call {call}: {sums:?}, not {expected}");
    Ok(())
}

/// The ranks of a test. The store is gone.
struct Ranks {
    processes: Vec<Rank>,
    living: Vec<usize>,
    topology: Topology,
}

impl Ranks {
    fn start(topology: Topology, ranks: usize) -> Self {
        Self::start_as("shrink::go on", topology, ranks)
    }

    fn start_as(role: &str, (transport, hosts): Topology, ranks: usize) -> Self {
        let (store, processes) = process::start(role, ranks, |rank| {
            let host = (rank * hosts / ranks).to_string();
            [("COMM_TRANSPORT", transport.to_owned()), ("COMM_HOSTID", host)]
        });
        let mut all = Self { processes, living: (0..ranks).collect(), topology: (transport, hosts) };
        all.check_group();
        drop(store);
        all
    }

    fn kill(&mut self, victims: &[usize]) {
        self.living.retain(|rank| !victims.contains(rank));
        for &victim in victims {
            self.processes[victim].child.kill().unwrap();
        }
    }

    /// Checks that the living ranks, and no others, compute right results together.
    fn check_group(&mut self) {
        let expected = format!("group {:?}", self.living);
        for &rank in &self.living {
            let report = self.processes[rank].report();
            assert_eq!(report.as_deref(), Some(&*expected), "rank {rank}, {:?}", self.topology);
        }
    }
}

#[test]
fn the_others_go_on_without_killed_ranks_and_without_the_store() {
    for topology in TOPOLOGIES {
        let mut ranks = Ranks::start(topology, 6);
        for victims in [&[0][..], &[3, 5], &[1], &[2]] {
            ranks.kill(victims);
            ranks.check_group();
        }
    }
}

#[test]
#[ignore = "needs minutes: 512 processes, or as many as COMM_TEST_RANKS says"]
fn hundreds_of_ranks_go_on_after_ten_kills() {
    let number = std::env::var("COMM_TEST_RANKS").ok().map_or(512, |ranks| ranks.parse().unwrap());
    let mut ranks = Ranks::start_as("shrink::one of hundreds", ("tcp", 1), number);
    for kill in 0..10 {
        let started = Instant::now();
        // Rank 0 is the first victim, and the others are spread over all ranks.
        ranks.kill(&[kill * number / 10]);
        ranks.check_group();
        println!("{} ranks after {:?}", ranks.living.len(), started.elapsed());
    }
}

#[test]
fn ranks_that_die_while_the_others_shrink_are_left_out_too() {
    for topology in TOPOLOGIES {
        for wait in [0, 1, 3, 10] {
            let mut ranks = Ranks::start(topology, 5);
            for victim in [4, 0, 2] {
                ranks.kill(&[victim]);
                std::thread::sleep(Duration::from_millis(wait));
            }
            // The groups of two died before or after the others went on in them.
            while ranks.processes[1].report().unwrap() != "group [1, 3]" {}
            while ranks.processes[3].report().unwrap() != "group [1, 3]" {}
        }
    }
}

#[test]
fn a_stopped_rank_is_left_out_and_learns_it_when_it_continues() {
    for topology in TOPOLOGIES {
        let mut ranks = Ranks::start(topology, 3);
        let victim = Pid::from_child(&ranks.processes[1].child);
        kill_process(victim, Signal::STOP).unwrap();
        ranks.living = vec![0, 2];
        ranks.check_group();
        kill_process(victim, Signal::CONT).unwrap();
        assert_eq!(ranks.processes[1].report().as_deref(), Some("left out"), "{topology:?}");
    }
}

#[test]
#[ignore = "measures times"]
fn the_time_from_a_kill_to_the_next_right_result() {
    let kills: usize = std::env::var("COMM_TEST_KILLS").map_or(100, |kills| kills.parse().unwrap());
    for topology in TOPOLOGIES {
        let mut times: Vec<Duration> = Vec::new();
        for kill in 0..kills {
            let mut ranks = Ranks::start(topology, 4);
            let began = Instant::now();
            ranks.kill(&[kill % 4]);
            ranks.check_group();
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let quantile = |share: usize| times[(kills * share / 100).min(kills - 1)];
        println!(
            "{topology:?}: {kills} kills, p50 {:?}, p99 {:?}, max {:?}",
            quantile(50),
            quantile(99),
            times[kills - 1]
        );
    }
}

//! Tests with real processes; some are killed or stopped, and the others go on.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use crate::common::process::{self, Rank};
use comm::tcp::TcpStoreServer;
use comm::{Comm, Config, Error, ReduceOp, Result, ShrinkOptions};
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
    let outcome = match process::role().as_deref() {
        None => return,
        Some("one of hundreds") => one_of_hundreds(),
        Some("on demand") => on_demand(0).and_then(|comm| go_on(comm, TIMEOUT)),
        Some(_) => comm::init().and_then(|comm| go_on(comm, TIMEOUT)),
    };
    match outcome {
        Ok(()) => {}
        Err(Error::Aborted { .. }) => println!("report: left out"),
        Err(other) => println!("report: {other}"),
    }
}

/// Connects to the other ranks, to all of them at once if there are at most `full_mesh_max`.
fn on_demand(full_mesh_max: usize) -> Result<Comm> {
    let mut config = Config::from_env()?;
    config.tcp.full_mesh_max = full_mesh_max;
    #[cfg(feature = "shm")]
    {
        config.shm.full_mesh_max = full_mesh_max;
    }
    comm::init_with(&config)
}

/// Makes an all-reduce around a ring, reports the descriptors and the memory that this takes, and
/// goes on. `COMM_TEST_FULL_MESH` is the largest number of ranks that are all connected at once.
fn one_of_hundreds() -> Result<()> {
    let full_mesh = std::env::var("COMM_TEST_FULL_MESH").map(|ranks| ranks.parse().unwrap());
    let began = Instant::now();
    let comm = on_demand(full_mesh.unwrap_or(16))?.with_timeout(TIMEOUT_OF_HUNDREDS);
    let formed = began.elapsed();
    let members: Vec<usize> = (0..comm.size()).collect();
    all_reduce(&comm.with_algorithm("ring"), &members, 0)?;
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let memory = std::fs::read_to_string("/proc/self/status").unwrap();
    let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
    println!("report: {descriptors} {memory}, formed in {formed:?}");
    go_on(comm, TIMEOUT_OF_HUNDREDS)
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

    fn start_as(role: &str, topology: Topology, ranks: usize) -> Self {
        let (store, mut all) = Self::launch(role, topology, ranks);
        all.check_group();
        drop(store);
        all
    }

    fn launch(role: &str, (transport, hosts): Topology, ranks: usize) -> (TcpStoreServer, Self) {
        let (store, processes) = process::start(role, ranks, |rank| {
            let host = (rank * hosts / ranks).to_string();
            [("COMM_TRANSPORT", transport.to_owned()), ("COMM_HOSTID", host)]
        });
        (store, Self { processes, living: (0..ranks).collect(), topology: (transport, hosts) })
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

/// Ranks that are not all connected: rank 0 is connected with none of 3 and 5 of 8, and so on.
#[test]
fn ranks_that_are_connected_on_demand_go_on_without_killed_ranks() {
    for topology in TOPOLOGIES {
        let mut ranks = Ranks::start_as("shrink::on demand", topology, 8);
        for victims in [&[0][..], &[3, 6], &[1], &[5]] {
            ranks.kill(victims);
            ranks.check_group();
        }
    }
}

#[test]
#[ignore = "needs minutes: 512 processes, or as many as COMM_TEST_RANKS says"]
fn hundreds_of_ranks_go_on_after_ten_kills() {
    hundreds_go_on_after_ten_kills("tcp", 64);
}

#[test]
#[ignore = "needs minutes: 512 processes, or as many as COMM_TEST_RANKS says"]
fn hundreds_of_ranks_that_share_memory_go_on_after_ten_kills() {
    // Each peer also takes a descriptor of its process.
    hundreds_go_on_after_ten_kills("shm", 80);
}

/// `descriptors_max` is the limit on descriptors of a rank after an all-reduce around a ring.
fn hundreds_go_on_after_ten_kills(transport: &'static str, descriptors_max: usize) {
    let number = std::env::var("COMM_TEST_RANKS").ok().map_or(512, |ranks| ranks.parse().unwrap());
    let started = Instant::now();
    let (store, mut ranks) = Ranks::launch("shrink::one of hundreds", (transport, 1), number);
    let reports: Vec<String> = ranks.processes.iter_mut().map(|rank| rank.report().unwrap()).collect();
    let descriptors = |report: &String| report.split(' ').next().unwrap().parse::<usize>().unwrap();
    let most = reports.iter().max_by_key(|report| descriptors(report)).unwrap();
    println!("{number} ranks made a call after {:?}, with most descriptors: {most}", started.elapsed());
    if std::env::var_os("COMM_TEST_FULL_MESH").is_none() {
        assert!(descriptors(most) <= descriptors_max, "{most}");
    }
    ranks.check_group();
    drop(store);
    for kill in 0..10 {
        let started = Instant::now();
        // Rank 0 is the first victim, and the others are spread over all ranks.
        ranks.kill(&[kill * number / 10]);
        ranks.check_group();
        println!("{} ranks after {:?}", ranks.living.len(), started.elapsed());
    }
    // All at once, so that the last ones do not shrink again and again.
    ranks.processes.iter_mut().for_each(|rank| rank.child.kill().unwrap());
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

//! Tests with real processes; one is killed during rendezvous.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Port, process};
use comm::{Error, Loss};

/// The timeout after which a rank reports one that died before it joined, which cannot be detected
/// earlier.
const TIMEOUT: Duration = Duration::from_secs(6);
/// The limit for all other deaths. The documented limit is two seconds; the machine may be busy.
const SOON: Duration = Duration::from_secs(4);

/// The process of a rank that a test starts: it connects, then waits for all others forever.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    if process::role().is_none() {
        return;
    }
    println!("report: here");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let error = match comm::init() {
        Ok(comm) => loop {
            if let Err(error) = comm.barrier() {
                break error;
            }
        },
        Err(error) => error,
    };
    match &error {
        Error::PeerLost { peer, loss: Loss::Store(_), .. } => println!("report: lost the store of {peer}"),
        Error::PeerLost { peer, .. } => println!("report: lost {peer}"),
        Error::Timeout { waiting_for, .. } => println!("report: waited for {waiting_for:?}"),
        Error::Io { .. } => println!("report: no store: {error}"),
        other => println!("report: other: {other}"),
    }
}

/// A pseudorandom sequence of numbers below a bound.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // The constants of Knuth's MMIX.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct World {
    ranks: usize,
    transport: &'static str,
    rank_0_serves: bool,
}

/// Kills one rank at a random time after all have started. Returns whether the death was detected
/// before the deadline.
fn kill_one(world: &World, random: &mut Random) -> bool {
    let World { ranks, transport, rank_0_serves } = *world;
    let port = Port::reserve();
    let (_store, mut processes) = process::start("killed_in_init::rendezvous", ranks, |_| {
        let mut variables = vec![
            ("COMM_TRANSPORT", transport.to_owned()),
            ("COMM_RENDEZVOUS_TIMEOUT_S", TIMEOUT.as_secs().to_string()),
        ];
        if rank_0_serves {
            variables.push(("COMM_STORE", "rank0".into()));
            variables.push(("MASTER_PORT", port.number.to_string()));
        }
        variables
    });
    for process in &mut processes {
        assert_eq!(process.report().as_deref(), Some("here"));
    }
    let victim = random.below(ranks as u64) as usize;
    let moment = Duration::from_micros(random.below(60_000));
    for process in &mut processes {
        process.resume();
        if random.below(3) == 0 {
            thread::sleep(Duration::from_micros(random.below(3000)));
        }
    }
    thread::sleep(moment);
    processes[victim].child.kill().unwrap();
    let killed = Instant::now();
    let mut at_once = true;
    for (rank, process) in processes.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let report = process.report().unwrap();
        let took = killed.elapsed();
        let context = format!(
            "rank {rank} of {ranks} over {transport}, rank {victim} killed after {moment:?}, {took:?}"
        );
        let lost = report == format!("lost {victim}") || victim == 0 && report == "lost the store of 0";
        if lost && took < SOON {
            continue;
        }
        // It died before it joined. The first rank with an expired deadline reports it, some
        // milliseconds before the others would.
        let is_deadline = took + moment + Duration::from_millis(200) > TIMEOUT;
        let undetected = is_deadline && (lost || report == format!("waited for [{victim}]"));
        let unserved = rank_0_serves && victim == 0 && report.starts_with("no store");
        assert!(undetected || unserved, "{context}: {report}");
        at_once = false;
    }
    at_once
}

/// Returns the number of deaths that were detected before the deadline.
fn kill_in(world: &World, seed: u64, times: usize) -> usize {
    let mut random = Random(seed);
    (0..times).filter(|_| kill_one(world, &mut random)).count()
}

#[test]
fn a_rank_that_is_killed_during_rendezvous_and_no_other_is_named() {
    let mut detected = 0;
    for rank_0_serves in [true, false] {
        detected += kill_in(&World { ranks: 4, transport: "tcp", rank_0_serves }, 1, 6);
        #[cfg(feature = "hybrid")]
        {
            detected += kill_in(&World { ranks: 4, transport: "auto", rank_0_serves }, 2, 6);
        }
    }
    // The number depends on the load of the machine: a rank that dies before it joins is not
    // detected.
    assert!(detected > 0, "no death was detected before the deadline");
}

#[test]
fn a_late_rank_learns_which_rank_was_lost() {
    // Unless rank 1 is killed before it joins.
    let is_named = [100, 400, 1600].map(Duration::from_millis).into_iter().any(|delay| {
        let port = Port::reserve();
        let (_store, mut processes) = process::start("killed_in_init::rendezvous", 3, |_| {
            vec![
                ("COMM_TRANSPORT", "tcp".to_owned()),
                ("COMM_RENDEZVOUS_TIMEOUT_S", TIMEOUT.as_secs().to_string()),
                ("COMM_STORE", "rank0".into()),
                ("MASTER_PORT", port.number.to_string()),
            ]
        });
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("here"));
        }
        processes[0].resume();
        processes[1].resume();
        thread::sleep(delay);
        processes[1].child.kill().unwrap();
        thread::sleep(Duration::from_millis(200));
        processes[2].resume();
        [0, 2].map(|rank: usize| processes[rank].report()) == [Some("lost 1".into()), Some("lost 1".into())]
    });
    assert!(is_named);
}

/// Many more, to find rare failures.
#[test]
#[ignore = "takes minutes"]
fn a_rank_that_is_killed_in_a_thousand_rendezvous_and_no_other_is_named() {
    for seed in 0..20 {
        for rank_0_serves in [true, false] {
            for (ranks, transport) in [(2, "tcp"), (5, "tcp"), (3, "auto"), (8, "auto"), (4, "shm")] {
                kill_in(&World { ranks, transport, rank_0_serves }, seed, 5);
            }
        }
    }
}

//! The whole communicator in virtual time: a rank that dies at any operation is named by all
//! others, within the deadline, and no call returns a wrong result.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Collective, Comm, Error, ReduceOp, Result};
use comm_ring::schedule::Algorithm;
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, VirtualClock};

const TIMEOUT: Duration = Duration::from_secs(2);

const COLLECTIVES: [Collective; 11] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::Scan,
    Collective::Exscan,
    Collective::Barrier,
];

/// The element that `from` contributes for `to` at position `at`.
fn element(from: usize, to: usize, at: usize) -> u64 {
    (from * 1009 + to * 101 + at + 1) as u64
}

fn block(from: usize, to: usize) -> Vec<u64> {
    (0..LENGTH).map(|at| element(from, to, at)).collect()
}

fn sum(of: impl Iterator<Item = usize> + Clone, to: usize) -> Vec<u64> {
    (0..LENGTH).map(|at| of.clone().map(|from| element(from, to, at)).sum()).collect()
}

const LENGTH: usize = 20;

/// Makes one call and compares its result exactly.
fn call(comm: &Comm, collective: Collective) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.size());
    let root = n - 1;
    let mut one = block(rank, 0);
    let mut all: Vec<u64> = (0..n).flat_map(|to| block(rank, to)).collect();
    let expected = match collective {
        Collective::AllReduce => {
            comm.all_reduce(&mut one, ReduceOp::Sum)?;
            sum(0..n, 0)
        }
        Collective::Reduce => {
            comm.reduce(root, &mut one, ReduceOp::Sum)?;
            if rank == root { sum(0..n, 0) } else { one.clone() }
        }
        Collective::Broadcast => {
            comm.broadcast(root, &mut one)?;
            block(root, 0)
        }
        Collective::AllGather => {
            comm.all_gather(&block(rank, 0), &mut all)?;
            one = all;
            (0..n).flat_map(|from| block(from, 0)).collect()
        }
        Collective::ReduceScatter => {
            comm.reduce_scatter(&all, &mut one, ReduceOp::Sum)?;
            sum(0..n, rank)
        }
        Collective::Gather => {
            let mut gathered = vec![0; if rank == root { n * LENGTH } else { 0 }];
            comm.gather(root, &one, &mut gathered)?;
            one = gathered;
            (0..n).filter(|_| rank == root).flat_map(|from| block(from, 0)).collect()
        }
        Collective::Scatter => {
            comm.scatter(root, if rank == root { &all[..] } else { &[] }, &mut one)?;
            block(root, rank)
        }
        Collective::AllToAll => {
            comm.all_to_all(&all.clone(), &mut all)?;
            one = all;
            (0..n).flat_map(|from| block(from, rank)).collect()
        }
        Collective::Scan => {
            comm.scan(&mut one, ReduceOp::Sum)?;
            sum(0..=rank, 0)
        }
        Collective::Exscan => {
            comm.exscan(&mut one, ReduceOp::Sum)?;
            if rank == 0 { one.clone() } else { sum(0..rank, 0) }
        }
        _ => {
            comm.barrier()?;
            one.clone()
        }
    };
    assert_eq!(one, expected, "{collective:?} on rank {rank}");
    Ok(())
}

/// The life of a rank.
#[derive(Debug)]
struct Life {
    rank: usize,
    dead: bool,
    /// Whether it had called finalize.
    finalized: bool,
    error: Option<Error>,
    /// The longest time that a step took.
    longest: Duration,
    end: Duration,
}

/// Connects, makes a call twice, and leaves.
fn live(
    fabric: network::NetworkFabric,
    clock: &VirtualClock,
    row: &Algorithm,
    life: &mut Life,
) -> Result<()> {
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    let mut began = clock.elapsed();
    let mut step = |result: Result<()>| {
        let now = clock.elapsed();
        life.longest = life.longest.max(now - began);
        began = now;
        result
    };
    let ring = RingCommunicator::new(fabric, config, TIMEOUT);
    step(ring.as_ref().map(drop).map_err(Clone::clone))?;
    let comm = Comm::new(ring?).with_timeout(TIMEOUT).with_algorithm(row.name);
    for _ in 0..2 {
        step(call(&comm, row.collective))?;
    }
    life.finalized = true;
    step(comm.finalize())
}

fn lives(n: usize, seed: u64, plan: &FaultPlan, row: &'static Algorithm) -> Vec<Life> {
    network::run(n, seed, plan, |fabric, clock| {
        let rank = comm_core::Fabric::group(&fabric).rank();
        let (dead, finalized, longest, end) = (false, false, Duration::ZERO, Duration::ZERO);
        let mut life = Life { rank, dead, finalized, error: None, longest, end };
        life.error = live(fabric, &clock, row, &mut life).err();
        (life.dead, life.end) = (clock.is_dead(), clock.elapsed());
        life
    })
}

/// Checks the lives of ranks of which `victim` dies before an operation. Returns whether it died.
fn check(lives: &[Life], victim: usize, case: &str) -> bool {
    let died = lives[victim].dead;
    for life in lives.iter().filter(|life| life.rank != victim) {
        assert!(life.longest < TIMEOUT, "{case}: {life:?}");
        match &life.error {
            None => assert!(!died || lives[victim].finalized, "{case}: not noticed: {life:?}"),
            Some(error) => {
                let names = matches!(error.root_cause(), Error::PeerLost { peer, .. } if *peer == victim);
                assert!(died && names, "{case}: {life:?}");
            }
        }
    }
    died
}

/// Kills every rank before each of its operations, every `stride`-th from `first` on.
fn kill_everywhere(
    n: usize,
    plan: &FaultPlan,
    row: &'static Algorithm,
    (first, stride): (u64, u64),
) -> usize {
    let mut deaths = 0;
    for victim in 0..n {
        let mut operation = first;
        loop {
            let case = format!("{:?} {}, {n} ranks, {victim} dies at {operation}", row.collective, row.name);
            let plan = plan.clone().death_before(victim, operation);
            if !check(&lives(n, operation, &plan, row), victim, &case) {
                break;
            }
            deaths += 1;
            operation += stride;
        }
    }
    deaths
}

fn rows() -> impl Iterator<Item = &'static Algorithm> {
    COLLECTIVES.into_iter().flat_map(Algorithm::for_collective)
}

#[test]
fn a_rank_that_dies_at_any_operation_of_any_collective_is_named_by_all_others() {
    for collective in COLLECTIVES {
        let row = Algorithm::for_collective(collective).next().unwrap();
        for n in [2, 3] {
            let deaths = kill_everywhere(n, &FaultPlan::calm(), row, (1, 1));
            assert!(deaths > 20 * n, "{collective:?}: {deaths} deaths");
        }
    }
}

#[test]
fn a_rank_that_dies_in_any_algorithm_is_named_by_all_others() {
    for (at, row) in rows().enumerate() {
        kill_everywhere(5, &FaultPlan::calm(), row, (1 + at as u64 % 17, 17));
    }
}

#[test]
fn on_a_slow_and_uneven_network_every_algorithm_returns_the_right_result() {
    for row in rows() {
        for seed in 0..3 {
            let lives = lives(3, seed, &FaultPlan::rough(), row);
            assert!(lives.iter().all(|life| life.error.is_none()), "{}: seed {seed}: {lives:?}", row.name);
        }
    }
}

#[test]
fn a_run_repeats_itself_to_the_nanosecond() {
    let run = |seed| {
        let row = Algorithm::for_collective(Collective::AllReduce).next().unwrap();
        let plan = FaultPlan::rough().death_before(1, 60);
        let lives = lives(3, seed, &plan, row);
        lives.iter().map(|life| (life.end, life.error.as_ref().map(Error::to_string))).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

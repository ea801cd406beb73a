//! Groups of the ranks that remain after deaths and stops at any moment, in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::ops::Range;
use std::time::Duration;

use comm_core::{Comm, Error, Fabric, ReduceOp, Result, ShrinkOptions};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, Incident, NetworkFabric, VirtualClock};
use fastrand::Rng;

const TIMEOUT: Duration = Duration::from_secs(2);
/// The calls that the ranks make together, in however many groups.
const CALLS: usize = 4;

/// Scattered over 48 bits, so that other ranks do not have the same sum.
fn element(rank: usize, call: usize) -> u64 {
    ((rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) + call as u64
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Death,
    Stop(Duration),
    /// The link to another rank breaks.
    Break(usize),
    /// The next stream on which bytes are sent to another rank breaks.
    Corruption(usize),
    /// No bytes from the rank arrive for longer than its connections last.
    Silence,
}

/// A run that the seed reproduces.
#[derive(Debug, Clone)]
struct Scenario {
    n: usize,
    seed: u64,
    plan: FaultPlan,
    /// Faults, each with its rank and the number of that rank's operation before which it happens.
    faults: Vec<(usize, u64, Fault)>,
}

/// The course of a rank's run.
#[derive(Debug, Default)]
struct Life {
    rank: usize,
    dead: bool,
    error: Option<Error>,
    /// The members of each group, by their ranks in the first one.
    groups: Vec<Vec<usize>>,
    /// The time from a failed call to the next right result, at most.
    longest: Duration,
}

impl Scenario {
    /// The longest time from a failed call to the next right result.
    fn recovery_max(&self) -> Duration {
        let per_fault = if self.faults.iter().all(|(_, _, fault)| *fault == Fault::Death) {
            TIMEOUT / 2
        } else {
            6 * TIMEOUT
        };
        per_fault * self.faults.len() as u32
    }

    /// Returns whether living ranks may lose each other, so that only a majority goes on.
    fn can_split(&self) -> bool {
        self.faults.iter().any(|(_, _, fault)| !matches!(fault, Fault::Death | Fault::Stop(_)))
    }

    fn run(&self) -> Vec<Life> {
        network::run(self.n, self.seed, &self.plan, |fabric, clock| {
            let mut life = Life { rank: fabric.group().rank(), ..Life::default() };
            let peers: Vec<usize> = fabric.group().peers().collect();
            for &(rank, operation, fault) in &self.faults {
                if rank == life.rank {
                    let (own_clock, peers) = (clock.clone(), peers.clone());
                    clock.before_operation(operation, move || match fault {
                        Fault::Death => own_clock.die(),
                        Fault::Stop(time) => own_clock.sleep(time),
                        Fault::Break(other) => own_clock.inject(Incident::Break { between: (rank, other) }),
                        Fault::Corruption(to) => own_clock.inject(Incident::Corruption { from: rank, to }),
                        Fault::Silence => {
                            let lasting = 2 * FaultPlan::calm().keepalive;
                            let cut = |to| own_clock.inject(Incident::Cut { from: rank, to, lasting });
                            peers.into_iter().for_each(cut);
                        }
                    });
                }
            }
            life.error = live(fabric, &clock, &mut life, self.can_split()).err();
            life.dead = clock.is_dead();
            life
        })
    }
}

/// Makes all calls, in smaller and smaller groups.
fn live(fabric: NetworkFabric, clock: &VirtualClock, life: &mut Life, can_split: bool) -> Result<()> {
    let mut members: Vec<usize> = (0..fabric.group().size()).collect();
    let mut comm =
        Comm::new(RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT)?).with_timeout(TIMEOUT);
    life.groups.push(members.clone());
    let (mut call, mut first) = (0, 0);
    let mut failed = None;
    loop {
        let result = if call < CALLS { check_call(&comm, &members, call) } else { comm.clone().finalize() };
        match result {
            Ok(()) if call == CALLS => return Ok(()),
            Ok(()) => {
                call += 1;
                if let Some(failed) = failed.take() {
                    life.longest = life.longest.max(clock.elapsed() - failed);
                }
            }
            Err(error) => {
                if clock.is_dead() {
                    return Err(error);
                }
                failed = failed.or(Some(clock.elapsed()));
                let majority = if can_split { members.len() / 2 + 1 } else { 1 };
                let options =
                    ShrinkOptions::default().timeout(20 * TIMEOUT).patience(TIMEOUT).size_min(majority);
                let shrunk = comm.shrink(&options)?;
                members = shrunk.ranks.iter().map(|&rank| members[rank]).collect();
                life.groups.push(members.clone());
                first += shrunk.completed as usize;
                (call, comm) = (first, shrunk.comm);
            }
        }
    }
}

/// Makes one call and compares its result exactly.
fn check_call(comm: &Comm, members: &[usize], call: usize) -> Result<()> {
    let own = members[comm.rank()];
    let mut sum = [element(own, call); 3];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [members.iter().map(|&rank| element(rank, call)).sum(); 3], "call {call} of rank {own}");
    Ok(())
}

/// Checks that all living ranks without a fault went on together, with right results, and that a
/// rank that was stopped or lost its link to another one went on with them or not at all.
fn check(scenario: &Scenario, lives: &[Life]) {
    let stopped = |rank| {
        scenario.faults.iter().any(|&(other, _, fault)| match fault {
            Fault::Death => false,
            Fault::Stop(_) | Fault::Silence => other == rank,
            Fault::Break(end) | Fault::Corruption(end) => other == rank || end == rank,
        })
    };
    let living: Vec<&Life> = lives.iter().filter(|life| !life.dead).collect();
    for life in &living {
        match &life.error {
            None => {}
            Some(Error::Aborted { .. } | Error::TooFewRanks { .. }) if stopped(life.rank) => {}
            Some(error) => panic!("rank {} failed with {error}: {scenario:?}: {lives:?}", life.rank),
        }
        for other in &living {
            let agree = life.groups.iter().zip(&other.groups).all(|(own, others)| own == others);
            assert!(agree, "groups differ: {scenario:?}: {lives:?}");
        }
        let is_member = |life: &Life| life.groups.iter().all(|group| group.contains(&life.rank));
        assert!(is_member(life) && life.longest <= scenario.recovery_max(), "{scenario:?}: {lives:?}");
    }
}

/// The number of random scenarios.
fn seeds() -> u64 {
    std::env::var("COMM_TEST_SEEDS").map_or(3000, |seeds| seeds.parse().unwrap())
}

/// Whether all living ranks were connected in the first group.
fn began(lives: &[Life]) -> bool {
    lives.iter().all(|life| life.dead || !life.groups.is_empty())
}

#[test]
fn the_others_go_on_when_a_rank_dies_at_any_operation() {
    for n in [2, 3, 4] {
        (0..n).for_each(|rank| check_deaths_at_every_operation((rank, n), &FaultPlan::calm(), 1));
    }
}

/// In groups of more than five ranks, some are not connected with each other.
#[test]
fn the_others_go_on_when_a_rank_dies_that_only_some_watch() {
    for (rank, n) in [(0, 6), (5, 8), (3, 11)] {
        check_deaths_at_every_operation((rank, n), &FaultPlan::calm().on_demand(true), 7);
    }
}

/// A rank dies before some of its operations, which differ by `stride`.
fn check_deaths_at_every_operation((rank, n): (usize, usize), plan: &FaultPlan, stride: usize) {
    let mut shrunk = 0;
    for operation in (1..).step_by(stride) {
        let faults = vec![(rank, operation, Fault::Death)];
        let scenario = Scenario { n, seed: operation, plan: plan.clone(), faults };
        let lives = scenario.run();
        if !lives[rank].dead {
            break;
        }
        if !began(&lives) {
            continue;
        }
        check(&scenario, &lives);
        shrunk += usize::from(lives.iter().any(|life| life.groups.len() > 1));
    }
    assert!(shrunk > 20, "rank {rank} of {n} left a group only {shrunk} times");
}

#[test]
fn the_others_go_on_when_several_ranks_die_or_stop_at_any_moment() {
    let (shrunk, again, left_out) = check_random_faults(seeds(), 2..7, false);
    assert!(shrunk > 1000 && again > 100 && left_out > 50, "{shrunk} {again} {left_out}");
}

#[test]
fn the_others_go_on_when_ranks_die_or_stop_that_only_some_watch() {
    let (shrunk, again, left_out) = check_random_faults(seeds() / 5, 6..14, true);
    assert!(shrunk > 200 && again > 5 && left_out > 10, "{shrunk} {again} {left_out}");
}

/// Returns the number of times that ranks went on in a smaller group, in several of them one after
/// the other, and without a living rank.
fn check_random_faults(seeds: u64, sizes: Range<usize>, on_demand: bool) -> (usize, usize, usize) {
    let (mut shrunk, mut again, mut left_out) = (0, 0, 0);
    for seed in 0..seeds {
        let mut random = Rng::with_seed(seed);
        let n = random.usize(sizes.clone());
        // Like a socket, a link holds what is sent to a rank that is stopped.
        let plan = if random.bool() { FaultPlan::calm() } else { FaultPlan::rough().capacity(4096) };
        let plan = plan.on_demand(on_demand);
        let faults = (0..random.usize(1..=3)).map(|_| {
            let fault =
                if random.u8(0..4) > 0 { Fault::Death } else { Fault::Stop(TIMEOUT * random.u32(0..30) / 3) };
            // Ranks of larger groups make more operations.
            (random.usize(0..n), random.u64(60..if on_demand { 2000 } else { 600 }), fault)
        });
        let scenario = Scenario { n, seed, faults: faults.collect(), plan };
        let lives = scenario.run();
        if !began(&lives) {
            continue;
        }
        check(&scenario, &lives);
        shrunk += usize::from(lives.iter().any(|life| life.groups.len() > 1));
        again += usize::from(lives.iter().any(|life| life.groups.len() > 2));
        left_out += usize::from(lives.iter().any(|life| matches!(life.error, Some(Error::Aborted { .. }))));
    }
    (shrunk, again, left_out)
}

#[test]
fn no_rank_goes_on_alone_when_the_link_between_two_members_breaks_while_they_shrink() {
    let mut shrunk = 0;
    // From the first failure to the end of the run.
    for operation in 150..700 {
        let faults = vec![(1, 140, Fault::Break(2)), (1, operation, Fault::Break(4))];
        let scenario = Scenario { n: 5, seed: operation, plan: FaultPlan::calm(), faults };
        let lives = scenario.run();
        check(&scenario, &lives);
        shrunk += usize::from(lives.iter().any(|life| life.groups.len() > 1));
    }
    assert!(shrunk > 300, "{shrunk}");
}

/// The stream may be the one that announces that rank 1 is connected, in the failed group or in the
/// new one.
#[test]
fn no_rank_goes_on_alone_when_one_stream_between_two_members_breaks_while_they_shrink() {
    let mut together = 0;
    for operation in 150..700 {
        let faults = vec![(2, 140, Fault::Death), (1, operation, Fault::Corruption(0))];
        let scenario = Scenario { n: 5, seed: operation, plan: FaultPlan::calm(), faults };
        let lives = scenario.run();
        check(&scenario, &lives);
        for group in lives.iter().filter(|life| !life.dead).flat_map(|life| &life.groups) {
            let is_in = |rank: &usize| lives[*rank].dead || lives[*rank].groups.contains(group);
            assert!(group.iter().all(is_in), "{group:?}: {scenario:?}: {lives:?}");
        }
        together += usize::from(lives[1].groups.len() > 1);
    }
    assert!(together > 200, "{together}");
}

/// Rank 1 may know that all members are connected, while nobody knows that it is.
#[test]
fn no_minority_goes_on_when_nothing_that_a_rank_sends_arrives_while_they_shrink() {
    let (mut together, mut without) = (0, 0);
    for operation in 150..400 {
        let faults = vec![(2, 140, Fault::Death), (1, operation, Fault::Silence)];
        let scenario = Scenario { n: 5, seed: operation, plan: FaultPlan::calm(), faults };
        let lives = scenario.run();
        check(&scenario, &lives);
        let is_member = lives[0].groups.get(1).is_some_and(|group| group.contains(&1));
        *(if is_member { &mut together } else { &mut without }) += 1;
    }
    assert!(together > 50 && without > 50, "{together} {without}");
}

//! The swarm is reproducible, and finds planted defects.

use std::time::Duration;

use comm_core::Result;
use comm_sim::network::{Defect, NetworkFabric};
use comm_sim::swarm::{self, FaultKind, Knobs, Plan, Property, SwarmRank};

use super::{Program, program, rendezvous, sockets};

/// The number of runs in which every planted defect must be found.
const BUDGET: u64 = 200;

/// Returns the number of runs until a property does not hold, and that property.
fn runs_until_found(
    knobs: &Knobs,
    program: impl Fn(NetworkFabric, &SwarmRank<'_>) -> Result<()> + Sync,
) -> (u64, Property) {
    let found = (0..BUDGET).find_map(|seed| {
        let failure = swarm::run_plan(&Plan::draw(seed, knobs), &program).err()?;
        Some((seed + 1, failure.violation.property))
    });
    found.unwrap_or_else(|| panic!("not found in {BUDGET} runs: {knobs:?}"))
}

#[test]
fn a_seed_reproduces_every_operation() {
    for (program, seed) in Program::all().iter().flat_map(|program| (0..30).map(move |seed| (program, seed)))
    {
        let run = |seed| program.run(seed).unwrap();
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.digest, run(seed + 1).digest, "seed {seed}");
    }
}

#[test]
fn every_defect_of_a_network_is_found() {
    for defect in Defect::ALL {
        let (runs, property) = runs_until_found(&Knobs::default().defect(defect), program::run);
        println!("{defect:?}: found in run {runs}, by {property:?}");
    }
}

#[test]
fn every_defect_of_a_store_is_found() {
    for defect in Defect::OF_STORE {
        let (runs, property) = runs_until_found(&rendezvous::knobs().defect(defect), rendezvous::run);
        println!("{defect:?}: found in run {runs}, by {property:?}");
    }
}

#[test]
fn corrupted_and_duplicated_bytes_without_checksums_are_found() {
    for kind in [FaultKind::Corruption, FaultKind::Duplication] {
        let knobs = Knobs::default().faults(vec![kind]).checksums(false);
        let (runs, property) = runs_until_found(&knobs, program::run);
        println!("{kind:?}: found in run {runs}, by {property:?}");
        let knobs = sockets::knobs().faults(vec![kind]).checksums(false);
        let (runs, property) = runs_until_found(&knobs, sockets::run);
        println!("{kind:?} over sockets: found in run {runs}, by {property:?}");
    }
}

/// A rank that failed because of a death ended its messages in the middle of one, and others that
/// saw only the end of its stream reported that it was lost.
#[test]
fn a_rank_that_ends_its_messages_because_of_a_death_is_not_named() {
    for seed in [4_100_001_191, 4_300_014_717] {
        let [calls, ..] = Program::all();
        let _ = calls.run(seed).unwrap();
    }
}

/// Repeated announcements filled the control stream to a rank that was busy with messages, so the
/// frame that told it of a failure did not fit.
#[test]
fn a_rank_that_is_busy_with_messages_learns_of_a_failure() {
    let [calls, ..] = Program::all();
    let _ = calls.run(30_700_005_742).unwrap();
}

/// The goodbyes that ranks pass on did not fit on a link at once. While two peers had not read all
/// of theirs, a rank sent each of them everything again as soon as it had, until it gave up after
/// 200 ms.
#[test]
fn goodbyes_that_do_not_fit_on_a_link_are_passed_on_once() {
    let [calls, ..] = Program::all();
    let run = calls.run(14_510_450_314_465_926_014).unwrap();
    let end = run.log.last().unwrap().at;
    assert!(end < Duration::from_millis(100), "{end:?}");
}

/// It ended its messages because another rank had, and told that only the ranks with which it had
/// exchanged some. Then it left, and another rank sent it a message.
#[test]
fn a_rank_that_has_ended_its_messages_and_left_is_not_named_as_dead() {
    let [calls, ..] = Program::all();
    let _ = calls.run(5_584_678_922_573_767_635).unwrap();
}

/// One that serves the store left before ranks that were late for a phase, or waited for the end of
/// one that a rank had failed just before it died, knew the cause.
#[test]
fn a_rank_that_serves_the_store_is_not_named_for_the_failure_of_another_one() {
    for seed in [4_900_008_283, 4_900_011_881, 6_700_005_276] {
        let [_, rendezvous, ..] = Program::all();
        let _ = rendezvous.run(seed).unwrap();
    }
}

/// A stopped process went on after its deadline, connected to the store of a former group.
#[test]
fn a_process_that_was_stopped_until_its_deadline_times_out() {
    for seed in [4_800_008_212, 4_900_001_387] {
        let [.., groups] = Program::all();
        let _ = groups.run(seed).unwrap();
    }
}

/// A member that fails while the group grows reports the cause in the present group, and leaves the
/// new one. The others must not take it for the rank that was lost.
#[test]
fn a_member_that_leaves_a_new_group_is_not_named_in_place_of_the_cause() {
    let [_, _, groups, _] = Program::all();
    let _ = groups.run(6_100_000_713).unwrap();
}

/// An answer of a store was on its way when the store ended. A rank that was done had left by the
/// time at which it arrived, and its will, which came with it, made it a rank that was lost.
#[test]
fn a_store_that_has_ended_executes_no_will() {
    let [_, rendezvous, ..] = Program::all();
    let _ = rendezvous.run(4_700_012_672).unwrap();
}

/// The clock of a rank jumped over the time in which others answer for whom they wait, or it was
/// stopped for longer than the time in which it sends its goodbye.
#[test]
fn a_rank_whose_clock_jumps_or_that_was_stopped_waits_for_answers_and_says_goodbye() {
    run_all(&[31_415_926_535_928_062, 27_182_818_284_645_781]);
}

/// It knew that all had agreed to grow, and went on in the new group, while the others, which did
/// not know it, went on in the former one.
#[test]
fn a_member_that_is_separated_while_its_group_grows_does_not_go_on_alone() {
    run_all(&[31_415_926_535_968_713, 27_182_818_284_644_179]);
}

/// The other members gave up earlier than one that waited longer for the same rank, and so they
/// named that one, and it named them.
#[test]
fn a_member_that_stops_while_its_group_grows_is_named_by_all() {
    run_all(&[31_415_926_535_976_257]);
}

fn run_all(seeds: &[u64]) {
    for (program, seed) in
        Program::all().iter().flat_map(|program| seeds.iter().map(move |seed| (program, seed)))
    {
        let _ = program.run(*seed).unwrap();
    }
}
